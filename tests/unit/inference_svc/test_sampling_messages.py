"""Sampling parameters cross the wire."""

from corral.inference.v1 import sampling_pb2 as sampling_pb

from inference_svc.engine.sampling_params import Mirostat, Sampling, Stage
from inference_svc.sampling_messages import from_sampling, to_sampling


def test_sampling_survives_the_wire() -> None:
    """A model's defaults, sent and read back, are the same."""
    # Numbers that a 32-bit float holds exactly.
    sampling = Sampling(
        temperature=0.5,
        top_p=0.75,
        min_p=0.25,
        xtc_threshold=0.125,
        stages=(Stage.TOP_K, Stage.TEMPERATURE),
        mirostat=Mirostat(1, tau=4.5, eta=0.25),
    )

    assert to_sampling(from_sampling(sampling), Sampling()) == sampling


def test_mirostat_zero_is_off() -> None:
    """Version 0 says so explicitly."""
    on = sampling_pb.SamplingParams(mirostat=sampling_pb.MirostatParams(version=2))
    off = sampling_pb.SamplingParams(mirostat=sampling_pb.MirostatParams(version=0))

    assert to_sampling(on, Sampling()).mirostat == Mirostat(2)
    assert to_sampling(off, Sampling()).mirostat is None


def test_a_target_that_is_no_number_is_not_taken_for_none() -> None:
    """Such a target is refused by the limit of the field."""
    message = sampling_pb.SamplingParams(adaptive=sampling_pb.AdaptiveParams(target=float("nan")))

    assert to_sampling(message, Sampling()).adaptive is not None
