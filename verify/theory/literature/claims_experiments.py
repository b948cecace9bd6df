"""Claims about the results of training: those on which runs of our own bear, and those of others
that nothing here decides.
"""

from functools import partial

from verify.theory import measured
from verify.theory.literature.judgement import measured_claim, open_claim

QUESTION = "talk, Do Self-Attention Layers Actually Learn Convolutions?"
QUADRATIC = f"{QUESTION}, Quadratic encoding"
PATTERNS = "blog, Learned Attention Patterns"
ANALYSIS = "review, 2.2. Analysis"
ACCURACY = "review, 2.1. Classification Accuracy"
DETAILS = "docs/learned_details.md"
CIFAR = f"docs/learned.md, On CIFAR-10 ({measured.CIFAR_RUNS})"
CIFAR_ONE = "docs/learned.md, On CIFAR-10 (seed 0)"
LATTICE = f"{DETAILS}, On CIFAR-10 ({measured.CIFAR_RUNS})"
CIFAR_HEADS = f"{DETAILS}, Heads on CIFAR-10 ({measured.CIFAR_RUNS})"
DIGITS_HEADS = f"{DETAILS}, Heads on digits ({measured.DIGITS_RUNS})"
EARLIER = f"{DETAILS}, Earlier runs (four epochs at × 1, Σ rate 1.8)"
"""The page, the section and the seeds of the numbers that follow.  A test finds every number and
quotation there.
"""
PARTLY = "agrees in part"
SHORT = "too short to tell"
OUTCOMES = (PARTLY, SHORT)
"""How a measurement of ours stands to a claim, written by hand; to refute one would take the
setting of those who made it.
"""

_experiment = partial(open_claim, reason="an experiment of others")

CLAIMS = (
    measured_claim(
        "often-learned",
        "Attention layers often learn to perform convolution.",
        "attention layers can perform convolution and, indeed, they often learn to do so in practice",
        "abstract",
        PARTLY,
        f"{CIFAR}: the chance of random centres as near to nine taps (or, where it says further, as far) is, by layer, "
        f"{measured.CHANCES}; so the first becomes nearly a convolution, away from the border, the last do not "
        "(heads-learn-convolution says what random labels do)",
    ),
    measured_claim(
        "heads-learn-convolution",
        "In trained networks heads of the first layers attend one pixel each, on a grid around the query.",
        "a multi-head self-attention layer has the capacity to attend on such pattern and that this behavior is learned "
        "in practice.",
        "blog, Figure 1",
        PARTLY,
        f"{LATTICE}: from the paper's start {measured.SHARP} sharp heads end within 0.25 of an integer shift, and of all heads, "
        f"layer by layer, {measured.LATTICE}; {CIFAR_HEADS}: the largest weight goes {measured.PEAK_1} in layer 1; {LATTICE}: "
        f"with train labels in a random order “{measured.SHUFFLED}” do so, in all layers, so that nothing need be learned for it",
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
        SHORT,
        f"{CIFAR_ONE}: the distance of learned relative offsets to nine taps anywhere goes, by layer, {measured.OFFSETS} (0 the "
        "same map, 1 nothing in common); without a null",
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
        f"{CIFAR_HEADS}: from the paper's start the mean key is from the query, in tokens by layer, {measured.REACH}, and the root "
        f"mean square about it {measured.WIDTH}; {DIGITS_HEADS}: at × 25 from a local start {measured.DIGITS_REACH_LOCAL}, "
        f"from the paper's start {measured.DIGITS_REACH}",
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
        f"{CIFAR_HEADS}: from the paper's start the largest weight of a head, at most 1, goes {measured.PEAK_1} in layer 1 and "
        f"{measured.PEAK_6} in layer 6; {DIGITS_HEADS}: at × 25 {measured.DIGITS_PEAK_1} and {measured.DIGITS_PEAK_6}",
    ),
    open_claim(
        "similar-widths",
        "Many heads of one layer have similar widths, most of all in lower layers.",
        "A significant portion of the heads have similar widths, esp. at lower layers.",
        QUADRATIC,
        "an experiment of others; of runs of ours a layer's median α is kept, not each head's",
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
        SHORT,
        f"{CIFAR}: after six epochs {measured.ACCURACY} %; {CIFAR_ONE}: a ResNet-18 of more parameters has {measured.RESNET} %; "
        "whether the gap closes with more training cannot be told",
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
        f"{EARLIER}: by parameters 62.60 ± 0.91 % (120,286), 59.47 ± 0.92 % (136,630), 60.64 ± 0.76 % (142,102): not in order, "
        "and the three differ in more than that",
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
