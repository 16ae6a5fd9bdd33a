"""Every contract holds on this CPU, and fails where a kernel, a statistic or a hook is wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attnscope.attention import kernels, scores
from attnscope.contracts import CONTRACTS, Check, Contract, Verdict, verify_contract, verify_contracts
from attnscope.contracts.tolerances import Deviation
from attnscope.matrix import statistics
from attnscope.matrix.lazy_weights import LazyWeights
from attnscope.recording.hooks import interception

CPU = torch.device("cpu")
BY_NAME = {contract.name: contract for contract in CONTRACTS}


def verdict_of(name: str) -> Verdict:
    verdict = verify_contract(BY_NAME[name], CPU)
    assert verdict is not None
    return verdict


@pytest.mark.parametrize("name", [name for name, one in BY_NAME.items() if any(one.checks(CPU))])
def test_a_contract_holds_on_this_cpu(name: str) -> None:
    verdict = verdict_of(name)
    assert verdict.faults == []
    assert verdict.worst.holds
    assert verdict.cells[-1] == "holds"


def spoil(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, place: int, factor: float = 1.0001) -> None:
    """Multiply one of the results of a function."""
    right = getattr(owner, name)

    def wrong(*args: Any, **kwargs: Any) -> Any:
        found = list(right(*args, **kwargs))
        found[place] = found[place] * factor
        return tuple(found)

    monkeypatch.setattr(owner, name, wrong)


@pytest.mark.parametrize(
    ("contract", "owner", "name", "place"),
    [
        ("output of attend, float32", kernels, "flash_attention", 0),
        ("output of attend, float32", kernels, "flash_attention", 1),
        ("output of attend, float32", scores.Sinks, "apply", 0),
        ("gradients of attend, float32", kernels, "flash_attention_backward", 0),
        ("gradients of attend, float32", kernels, "flash_attention_backward", 2),
        ("lse of a matrix", kernels, "flash_attention", 1),
        ("entropy", statistics, "_fused_entropy", 0),
        ("received attention", LazyWeights, "transposed_products", 1),
        ("products with values", LazyWeights, "transposed_products", 0),
        ("pooled matrix", kernels, "flash_attention", 1),
        ("tile of a matrix", kernels, "flash_attention", 1),
        ("largest weight", kernels, "flash_attention", 1),
        ("summary", kernels, "flash_attention", 1),
    ],
)
def test_a_result_that_is_wrong_in_the_fifth_digit_fails(
    contract: str, owner: Any, name: str, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, owner, name, place)
    verdict = verdict_of(contract)
    assert not verdict.holds
    assert not verdict.worst.holds
    assert verdict.cells[-1] == "FAILS"


def test_low_precision_that_is_rounded_twice_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    right = kernels.flash_attention

    def wrong(*args: Any, **kwargs: Any) -> Any:
        output, lse = right(*args, **kwargs)
        return ((output + 1.0) - 1.0).to(output.dtype), lse

    monkeypatch.setattr(kernels, "flash_attention", wrong)
    assert "mean of output" in str(verdict_of("output of attend, bfloat16").faults)


def test_a_recorder_that_changes_a_call_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    right = interception.bind_arguments

    def wrong(*args: Any) -> dict[str, Any]:
        found = right(*args)
        return {**found, "query": found["query"] * 1.0001}

    monkeypatch.setattr(interception, "bind_arguments", wrong)
    assert not verdict_of("record leaves outputs unchanged").holds
    assert not verdict_of("recorded weights").holds


def test_an_error_is_a_fault_of_its_case_and_the_others_still_run() -> None:
    def fail() -> list[Deviation]:
        raise RuntimeError("no kernel image is available")

    contract = Contract("c", lambda _: [Check("one", fail), Check("two", lambda: [Deviation("x", 0.1, 0.2)])])
    verdict = verify_contract(contract, CPU)
    assert verdict is not None
    assert verdict.num_checks == 2
    assert verdict.faults == ["one: RuntimeError: no kernel image is available"]
    assert verdict.cells == ("cpu", "c", "2", "inf", "0", "FAILS")


def test_the_worst_case_is_that_nearest_to_its_bound() -> None:
    deviations = [Deviation("large", 1.0, 10.0), Deviation("small", 0.1, 0.2), Deviation("zero", 0.0, 0.0)]
    verdict = verify_contract(Contract("c", lambda _: [Check("one", lambda: deviations)]), CPU)
    assert verdict is not None
    assert verdict.worst.name == "small"


def test_contracts_that_do_not_apply_to_a_device_are_left_out() -> None:
    only_mps = Contract("m", lambda device: [Check("one", list)] * (device.type == "mps"))
    always = Contract("a", lambda _: [Check("one", lambda: [Deviation("x", 0.0, 1.0)])])
    steps: list[str] = []
    found = list(verify_contracts([only_mps, always], [CPU], steps.append))
    assert [verdict.contract for verdict in found] == ["a"]
    assert steps == ["m on cpu", "a on cpu"]
