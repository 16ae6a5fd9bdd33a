"""The answers in `exercises` are material of the tests, right ones and wrong ones; nothing collects them."""

collect_ignore = ["exercises"]
