"""Claims about the results of training, which only experiments can decide."""

from verify.theory.literature.judgement import Judgement, claim, experiment

_REASON = (
    "needs layers trained on images; the constructions here say what heads can do, not what training makes of them"
)


@claim(
    "heads-learn-convolution",
    "paper, experiments; blog",
    "In trained networks the heads of the first layers attend one pixel each, at shifts that make a grid around the query.",
)
def heads_learn_convolution() -> Judgement:
    """What trained heads look at."""
    return experiment(_REASON)


@claim(
    "local-first",
    "paper, experiments",
    "Trained heads of early layers look at positions near the query, those of deeper layers further away and at content.",
)
def local_first() -> Judgement:
    """What trained heads look at, by depth."""
    return experiment(_REASON)


@claim(
    "same-accuracy",
    "paper, experiments",
    "Networks of attention layers alone reach about the accuracy of a small residual network on small images, more slowly.",
)
def same_accuracy() -> Judgement:
    """How well trained networks do."""
    return experiment(_REASON)


CLAIMS = (heads_learn_convolution, local_first, same_accuracy)
