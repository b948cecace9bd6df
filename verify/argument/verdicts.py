"""The final verdict: on a layer, from its certificate and its samples; on a network, by
substitution.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from verify.argument.certificate import Certificate
from verify.argument.certification import certified
from verify.samples.network import CallComparison
from verify.samples.sampling import LayerCheck
from verify.verdict import Verdict, from_above


def certify_layer(
    conv: Any,
    layer: Any,
    check: LayerCheck,
    input_bound: float | None = None,
    *,
    within: float | None = None,
    leaking: bool = False,
) -> tuple[Certificate | None, Verdict]:
    """Certify a layer for all inputs of the sampled size and magnitude, and judge the samples by
    the certificate.

    Args:
        conv: the convolution.
        layer: its attention layer.
        check: the result of the samples; its grid becomes the certificate's.
        input_bound: B; by default the least power of two that is not below any sampled input.
        within: T, to claim a difference of at most T.
        leaking: whether the user chose the sharpness.  If heads leak, the claim is then a
            difference of at most the derived bound, leakage included; if none does, it is the same
            function as usual.

    Returns:
        The certificate (None where ``certify`` refuses) and the verdict.
    """
    bound = input_bound or power_of_two_above(check.largest_input)
    try:
        certificate = certified(conv, layer, check.grid, bound, within, leaking)
    except ValueError as error:
        worse = (
            check.verdict
            if check.verdict.name == "REFUTED"
            else Verdict("UNDECIDED", f"no certificate: {error}")
        )
        return None, worse
    return certificate, combined(certificate, check)


def combined(certificate: Certificate, check: LayerCheck) -> Verdict:
    """The verdict on a layer from both: samples may contradict a certificate, or refute what it
    leaves undecided.
    """
    refuted = check.verdict.name == "REFUTED"  # the claim "same sums"
    within = certificate.within
    if certificate.verdict.name == "PROVED" and _covers(certificate, check):
        beyond = _beyond_the_bound(certificate, check)
        if beyond is not None:
            return beyond
        # at another output, where less is allowed than at the largest difference
        if refuted and within is None:
            return check.verdict
    elif certificate.verdict.name == "UNDECIDED" and refuted:
        if within is None or not (check.discrepancy.max_abs <= within or check.convolution_off):
            return check.verdict
    return certificate.verdict


def _beyond_the_bound(certificate: Certificate, check: LayerCheck) -> Verdict | None:
    """The verdict where samples differ by more than the certificate's bound; None if none does."""
    over = np.flatnonzero(~(check.by_channel <= certificate.bound))
    if not over.size:
        return None
    channel = over[np.argmax(check.by_channel[over])]  # NaN is the largest
    limit = from_above(float(certificate.bound[channel]))
    sentence = f"in output channel {channel} the samples differ by {check.by_channel[channel]:.3g}"
    sentence += f", beyond the certificate's {limit}: {check.verdict.sentence}"
    refuted = check.verdict.name == "REFUTED" and certificate.within is None
    if check.convolution_off and not refuted:  # the error may be torch's own
        return Verdict("UNDECIDED", sentence)
    return Verdict("REFUTED", sentence)


def power_of_two_above(value: float) -> float:
    """The least power of two that is at least ``value`` and 2^−20: a bound with few digits."""
    if not math.isfinite(value):
        return value
    return 2.0 ** math.ceil(math.log2(max(value, 2.0**-20)))


def same_expression(
    calls: CallComparison,
    certificates: Mapping[str, Certificate | None],
    checks: Mapping[str, LayerCheck],
) -> bool:
    """Whether the converted network, on the inputs run, evaluates the original's expression, with
    sums in another order.

    By substitution: every executed convolution became a layer PROVED the same function for inputs
    as large as those it received, and all other calls agree.
    """
    if calls.difference is not None or calls.untraced or calls.left:
        return False
    for path in calls.layers:
        certificate = certificates.get(path)
        check = checks.get(path)
        if certificate is None or check is None or certificate.within is not None:
            return False
        if certificate.verdict.name != "PROVED" or not _covers(certificate, check):
            return False
    return True


def _covers(certificate: Certificate, check: LayerCheck) -> bool:
    """Whether the certificate covers the size and the magnitude of the inputs that were run."""
    fits = all(n <= most for n, most in zip(check.grid, certificate.grid, strict=True))
    return fits and check.largest_input <= certificate.input_bound
