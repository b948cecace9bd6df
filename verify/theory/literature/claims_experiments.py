"""Claims about the results of training: those on which runs of our own bear, and those of others that nothing here decides."""

from functools import partial

from verify.theory.literature.judgement import measured_claim, open_claim

QUESTION = "talk, Do Self-Attention Layers Actually Learn Convolutions?"
QUADRATIC = f"{QUESTION}, Quadratic encoding"
PATTERNS = "blog, Learned Attention Patterns"
ANALYSIS = "review, 2.2. Analysis"
ACCURACY = "review, 2.1. Classification Accuracy"
QUADRATIC_RUNS = (
    "on CIFAR-10 the quadratic encoding, from the paper's start and from a local one, cannot tell: AdamW moves a parameter by "
    "about its rate a step, the rates of 1800 steps add up to about 1.8 tokens for a centre, 1.8 for log α, and the paper's start "
    "draws centres with a standard deviation of two tokens"
)
DIGITS = (
    "docs/learned.md, On digits (4 × 4 tokens, seeds 0 to 4): from the paper's start, with room to move, heads of the first layers "
    "move to the lattice, but no layer is nearer to nine taps than sharp heads at random centres in every seed; from a local one "
    "or from a convolution the first sharpens to 0.04 to 0.25 and the last ones leave"
)
OFFSETS = (
    "relative offsets: layers begin 0.74 to 0.90 from the nearest convolution of 9 × 9 taps (0 the same, 1 nothing in common), the "
    "first two end at 0.26 to 0.42 and 0.46 to 0.66, the others at 0.48 to 0.95 (with content the first at 0.36 to 0.58; absolute "
    "positions stay near 0.8); heads end on single pixels, rows and columns"
)
PARTLY, SHORT = "agrees in part", "too short to tell"
OUTCOMES = (PARTLY, SHORT)
"""How a measurement of ours stands to a claim, written by hand; to refute one would take the setting of those who made it."""

_experiment = partial(open_claim, reason="an experiment of others")


def _runs(seeds: str) -> str:
    return f"docs/learned_details.md, Earlier runs (python -m examples.learned): width 36, 4 epochs of CIFAR-10, seeds {seeds}"


CLAIMS = (
    measured_claim(
        "often-learned",
        "Attention layers often learn to perform convolution.",
        "attention layers can perform convolution and, indeed, they often learn to do so in practice",
        "abstract",
        PARTLY,
        f"{_runs('0 to 4')}: {OFFSETS}; {QUADRATIC_RUNS}; {DIGITS}; that they can is theorem-limit",
    ),
    measured_claim(
        "heads-learn-convolution",
        "In trained networks heads of the first layers attend one pixel each, on a grid around the query.",
        "a multi-head self-attention layer has the capacity to attend on such pattern and that this behavior is learned "
        "in practice.",
        "blog, Figure 1",
        SHORT,
        f"{_runs('0 to 4')}: {QUADRATIC_RUNS}; {DIGITS}; {OFFSETS}; of the like the talk says “Maybe.”",
    ),
    open_claim(
        "one-dimension",
        "For text a learned relative encoding of two components should be enough, which is to be verified in practice.",
        "it seems that using learned relative positional encoding of dimension 2 should be enough but we need to verify this "
        "in practice",
        "blog, last paragraph but two",
        "an experiment on text; that two fixed components are enough for every 1-D kernel is any-dimension",
    ),
    open_claim(
        "confirmed",
        "Experiments confirm that attention learns convolutional filters around the queried pixel.",
        "learns convolutional filters around the queried pixel is confirmed",
        "review",
        "an experiment of others; for runs of ours see heads-learn-convolution",
    ),
    open_claim(
        "preference",
        "Whether a layer prefers to learn convolutions is hard to tell.",
        "It's difficult to judge whether a MHSA layer has a preference for learning convolutional operators or not.",
        QUESTION,
        "an experiment of others; it stands against heads-learn-convolution",
    ),
    measured_claim(
        "learned-offsets",
        "Learned heads attend distinct pixels at fixed shifts, like a kernel's receptive field.",
        "attend to distinct pixels at a fixed shift from the query pixel reproducing the receptive field of a "
        "convolutional kernel.",
        ANALYSIS,
        PARTLY,
        f"{_runs('0 to 4')}: {OFFSETS}",
    ),
    open_claim(
        "pixel-grid",
        "Attention layers attend to grids of pixels as layers of a CNN do.",
        "self-attention layers attend to pixel-grid patterns similarly to CNN layers",
        "abstract",
        "an experiment of others; for runs of ours see heads-learn-convolution",
    ),
    _experiment(
        "whole-image",
        "A layer learns where on the whole image its receptive field lies.",
        "it learns the positions of its receptive field on the whole image",
        "blog",
    ),
    _experiment(
        "different-parts",
        "Each head learns to attend another part of the image.",
        "Each head learns to focus on different parts of the images",
        "blog",
    ),
    _experiment(
        "centres-separate",
        "The centres of a layer's heads separate in training.",
        "Notice that the centers tend to separate",
        QUADRATIC,
    ),
    measured_claim(
        "local-first",
        "Heads of deeper layers look further from the query.",
        "deeper layers (layers 3–6) also attend to larger patterns by positioning the center of attention further from "
        "the queried pixel position.",
        ANALYSIS,
        PARTLY,
        f"{_runs('0 to 4')}: with the quadratic encoding alone, from the paper's start and from a local one, the first layer's "
        "heads move nearer to the query or stay near, those of layers 4 to 6 (the review: 3 to 6) move away (from a local start "
        "from 1.07 tokens to 1.6–2.3, but not with shuffled labels); not converged",
    ),
    _experiment(
        "more-heads",
        "With more heads the learned patterns are more than a grid of pixels.",
        "obserded more complex (learned) patterns than a grid of pixels.",
        PATTERNS,
    ),
    _experiment(
        "sixteen-heads",
        "Of sixteen heads, groups have small widths, and a few have widths that vary widely.",
        "groups of heads with small widths + a few heads with widely varying widths",
        QUESTION,
    ),
    open_claim(
        "rotations",
        "Such heads may serve to represent rotations.",
        "perhaps useful for representing rotations?",
        QUESTION,
        "a question of the talk; not examined here",
    ),
    measured_claim(
        "localised",
        "The attention that matters is localised.",
        "important attention probabilities are in general very localized.",
        PATTERNS,
        PARTLY,
        f"{_runs('0 to 4')}: the largest weight of a head, at most 1, goes from 0.62 to 0.67–0.82 in layers 1 and 2 from a local "
        "start; from 0.02–0.05 to 0.16–0.43 with relative offsets, on pixels, rows and columns; from 0.27 to 0.04–0.11 in the last "
        "layer with Σ (seeds 0 to 2)",
    ),
    measured_claim(
        "similar-widths",
        "Many heads of one layer have similar widths, most of all in lower layers.",
        "A significant portion of the heads have similar widths, esp. at lower layers.",
        QUADRATIC,
        SHORT,
        f"{_runs('0 to 4')}: {QUADRATIC_RUNS}",
    ),
    _experiment(
        "few-profiles",
        "A layer learns one or two attention profiles.",
        "Each layer seems to mostly learn one or two attention profiles.",
        f"{QUESTION}, Learned relative positional encoding (w/o content)",
    ),
    _experiment(
        "follows-the-query",
        "With content the profiles move along with the query.",
        "Attention profiles do seem to shift with the query pixel",
        f"{QUESTION}, with content",
    ),
    measured_claim(
        "same-accuracy",
        "The ResNet converges faster; the gap in accuracy can be bridged to match it.",
        "The ResNet is faster to converge. … The performance gap can be bridged to match the ResNet performance",
        ACCURACY,
        PARTLY,
        f"{_runs('0 to 4')} (ResNet-18: 0 to 2): slower it is, 62.60 ± 0.91 % at best (120,286 parameters) against "
        "75.84 ± 0.51 % (395,350); whether the gap closes these epochs cannot tell",
    ),
    _experiment(
        "inductive-bias",
        "The inductive bias of attention is weaker than a ResNet's.",
        "inductive bias is not as strong as ResNet",
        QUESTION,
    ),
    _experiment(
        "imagenet",
        "Attention performs on ImageNet as a ResNet does.",
        "Same performance as ResNet on ImageNet",
        "slides",
    ),
    _experiment(
        "beats-resnets",
        "Architectures of transformers can beat the best ResNets.",
        "transformer-based architectures can beat state of the art ResNets",
        "blog",
    ),
    open_claim(
        "replaces",
        "As Ramachandran et al. showed, attention can replace convolution and be state of the art on vision tasks.",
        "Ramachandran et al. (2019) showed that attention can completely replace convolution and achieve state-of-the-art "
        "performance on vision tasks",
        "abstract",
        "an experiment of others; layer by layer, and as a function, theorem-limit and torch-fields say how",
    ),
    _experiment(
        "same-cost",
        "Attention has the performance of convolution at the same cost of computation.",
        "achieve same performance, at same computation cost.",
        "slides, Conclusion",
    ),
    _experiment(
        "accuracy-94",
        "Six layers of nine heads reach 94 % on CIFAR-10.",
        "reached a good accuracy of 94%",
        PATTERNS,
    ),
    measured_claim(
        "more-parameters",
        "Attention with more parameters learns more slowly, and to a lower accuracy.",
        "SA models with more learnable parameters converge slower and ends up with lower testing accuracy.",
        "talk, Challenger models, MHSA variations",
        SHORT,
        f"{_runs('0 to 4')}: in %, by parameters: quadratic (111,808) 56.49 ± 2.04, with Σ (111,970, seeds 0 to 2) 57.14 ± 2.50, "
        "relative (120,286) 62.60 ± 0.91, absolute and content (136,630) 59.47 ± 0.92, relative and content (142,102) 60.64 ± "
        "0.76: those with more stand higher than quadratic after 4 epochs, but not in order, and with 111,808 other starts give "
        "55.13 ± 0.81 (local) and 60.40 ± 1.24 (from a convolution, seeds 0 to 2). On digits, 12 epochs, seeds 0 to 2: "
        "quadratic (101,008) 95.46 ± 0.42, and 96.50 to 97.00 where heads have room to move (docs/learned.md, On digits), "
        "relative (104,302) 95.00 ± 1.21, absolute and content (117,190) 89.63 ± 1.76, relative and content (126,118) 97.59 ± 0.16",
    ),
    open_claim(
        "harder-to-train",
        "Attention with content is harder to train, probably because it has more parameters.",
        "harder to train probably due to their increased number of parameters",
        "review",
        "an experiment of others, and a guess at its cause; for runs of ours see more-parameters",
    ),
    open_claim(
        "memory",
        "Full attention takes too much memory for larger images.",
        "full attention cannot be applied to bigger images due to large memory consumption.",
        ACCURACY,
        "it speaks of their code; heads that ignore content need no T × T weights (axis-factorisation)",
    ),
)
