"""A conformance suite of aclnnTopKTopPSample and its V2 at the level of CANN's C interface: no torch, cffi only.

It runs in a process of its own, because hostcann's state (like CANN's) is that of the process:

    python -m pytest --confcutdir tests/conformance tests/conformance

``test_own_process.py`` does that from an ordinary test run. Tests that break a device context run in a further process
each (`tests.support.isolation`).

The libraries are those of the repository's hostcann, or of the home in ASCEND_SAMPLE_CONFORMANCE_HOME; the value
``system`` leaves it to the dynamic loader, which is how the suite meets a real CANN. Tests of hostcann's own behaviour
(violations, injected faults, stream modes, inputs for which a device's result is undefined) carry the mark
``hostcann_only`` and are skipped there. The suite has been run on hostcann alone, never on a real CANN.
"""
