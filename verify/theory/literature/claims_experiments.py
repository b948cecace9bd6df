"""Claims about the results of training, which are not decided here."""

from functools import partial

from verify.theory.literature.judgement import open_claim

QUESTION = "talk, Do Self-Attention Layers Actually Learn Convolutions?"
PATTERNS = "blog, Learned Attention Patterns"
ANALYSIS = "review, 2.2. Analysis"
_TRAINED = "an experiment of others"
_experiment = partial(open_claim, reason=_TRAINED)

CLAIMS = (
    open_claim(
        "heads-learn-convolution",
        "In trained networks heads of the first layers attend one pixel each, on a grid around the query.",
        "a multi-head self-attention layer has the capacity to attend on such pattern and that this behavior is learned "
        "in practice.",
        "blog, Figure 1",
        f"{_TRAINED}; the talk answers “Maybe.”, and docs/learned.md shows small layers of ours",
    ),
    open_claim(
        "preference",
        "Whether a layer prefers to learn convolutions is hard to tell.",
        "It's difficult to judge whether a MHSA layer has a preference for learning convolutional operators or not.",
        QUESTION,
        f"{_TRAINED}; it stands against heads-learn-convolution",
    ),
    _experiment(
        "learned-offsets",
        "Learned heads attend distinct pixels at fixed shifts, like a kernel's receptive field.",
        "attend to distinct pixels at a fixed shift from the query pixel reproducing the receptive field of a "
        "convolutional kernel.",
        ANALYSIS,
    ),
    _experiment(
        "local-first",
        "Heads of deeper layers look further from the query.",
        "deeper layers (layers 3–6) also attend to larger patterns by positioning the center of attention further from "
        "the queried pixel position.",
        ANALYSIS,
    ),
    _experiment(
        "more-heads",
        "With more heads the learned patterns are more than a grid of pixels.",
        "obserded more complex (learned) patterns than a grid of pixels.",
        PATTERNS,
    ),
    _experiment(
        "localised",
        "The attention that matters is localised.",
        "important attention probabilities are in general very localized.",
        PATTERNS,
    ),
    _experiment(
        "similar-widths",
        "Many heads of one layer have similar widths, most of all in lower layers.",
        "A significant portion of the heads have similar widths, esp. at lower layers.",
        f"{QUESTION}, Quadratic encoding",
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
    _experiment(
        "same-accuracy",
        "Attention layers reach the accuracy of a ResNet on small images, more slowly.",
        "The ResNet is faster to converge. … The performance gap can be bridged to match the ResNet performance",
        "review, 2.1. Classification Accuracy",
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
    _experiment(
        "more-parameters",
        "Attention with more parameters learns more slowly, and to a lower accuracy.",
        "SA models with more learnable parameters converge slower and ends up with lower testing accuracy.",
        "talk, Challenger models, MHSA variations",
    ),
    open_claim(
        "memory",
        "Full attention takes too much memory for larger images.",
        "full attention cannot be applied to bigger images due to large memory consumption.",
        "review, 2.1. Classification Accuracy",
        "it speaks of their code; heads that ignore content need no T × T weights (axis-factorisation)",
    ),
)
