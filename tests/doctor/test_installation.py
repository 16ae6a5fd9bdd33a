"""The doctor tells what is installed, and how to install what is not."""

import os

import pytest

from attnscope.doctor import installation as doctor
from attnscope.extras import EXTRAS


def test_every_extra_is_reported() -> None:
    assert list(doctor.extras()) == [f"[{extra}]" for extra in EXTRAS]


def test_a_missing_package_is_called_missing() -> None:
    assert doctor.version_or_missing("a-package-that-is-not-there") == "missing"


def test_an_extra_that_is_not_complete_is_told_how_to_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRAS, "figures", ("matplotlib", "a-package-that-is-not-there"))
    report = doctor.extras()
    assert report["[figures]"].endswith('a-package-that-is-not-there missing; pip install "attnscope[figures]"')
    assert "pip install" not in report["[tables]"]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system lets no process choose its cores")
def test_cores_that_a_process_may_not_use_are_not_counted() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert doctor.cores() == ("1" if os.cpu_count() == 1 else f"1 of {os.cpu_count()}")
    finally:
        os.sched_setaffinity(0, allowed)
