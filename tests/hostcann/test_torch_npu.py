"""The real torch_npu on top of hostcann: copies, streams, graphs and errors. Each test starts programs of its own."""

import pytest
from activation_programs import emulated, needs_hostcann, needs_torch_npu, output

from ascend_sample import hostcann

pytestmark = needs_hostcann


@needs_torch_npu
@pytest.mark.parametrize(
    ("mode", "queue"), [("normal", "1"), ("delayed:3", "0"), ("delayed:3", "1"), ("lazy", "1"), ("lazy", "2")]
)
def test_copies_streams_and_events_of_torch_npu(mode, queue):
    program = """
        import torch
        from ascend_sample import hostcann
        side, done = torch.npu.Stream(), torch.npu.Event()
        pinned = torch.arange(8.).pin_memory()
        a, b = torch.empty(8, device="npu"), torch.empty(8, device="npu")
        a.copy_(pinned, non_blocking=True)
        side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(side):
            b.copy_(a)
            done.record()
        done.synchronize()
        assert done.query()
        back = b.cpu()
        assert back.tolist() == list(range(8)), back
        begin, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
        begin.record(); a.copy_(b); end.record(); end.synchronize()
        assert begin.elapsed_time(end) >= 0
        del a, b
        torch.npu.empty_cache()
        print(hostcann.live()["block"], hostcann.violations(), torch.npu.memory_allocated())
    """
    assert output(emulated(program, HOSTCANN_STREAM_MODE=mode, TASK_QUEUE_ENABLE=queue)) == "0 [] 0"


@needs_torch_npu
@pytest.mark.parametrize("mode", ["normal", "lazy"])
def test_a_graph_of_torch_npu_replays(mode):
    program = """
        import torch
        from ascend_sample import hostcann
        pinned, a, b = torch.ones(4).pin_memory(), torch.empty(4, device="npu"), torch.empty(4, device="npu")
        graph, side = torch.npu.NPUGraph(), torch.npu.Stream()
        with torch.npu.graph(graph):
            a.copy_(pinned, non_blocking=True)
            side.wait_stream(torch.npu.current_stream())
            with torch.npu.stream(side):
                b.copy_(a)
            torch.npu.current_stream().wait_stream(side)
        for value in (2., 3.):
            pinned.fill_(value)
            graph.replay()
            torch.npu.synchronize()
            assert b.cpu().tolist() == [value] * 4
        with hostcann.profile() as counted:
            graph.replay()
        print(counted.replays, counted.synchronizations)
        torch.npu.synchronize()
    """
    assert output(emulated(program, HOSTCANN_STREAM_MODE=mode)) == "1 {}"


@needs_torch_npu
def test_synchronising_inside_a_capture_is_an_error_with_its_reason():
    program = """
        import torch
        graph = torch.npu.NPUGraph()
        try:
            with torch.npu.graph(graph):
                torch.npu.synchronize()
        except RuntimeError as error:
            print(error)
    """
    done = emulated(program)
    assert "the capture is invalid since aclrtSynchronizeDevice" in done.stdout


@needs_torch_npu
def test_out_of_memory_becomes_torchs_own_error_and_can_be_survived():
    done = emulated(
        """
        import torch
        from ascend_sample import hostcann
        try:
            torch.empty(100 << 20, dtype=torch.uint8, device="npu")
        except torch.OutOfMemoryError as error:
            print("out of memory" in str(error))
        print(torch.ones(3).npu().cpu().sum().item())
        hostcann.set_memory_capacity(1 << 30)
        print(torch.empty(100 << 20, dtype=torch.uint8, device="npu").numel() >> 20)
        hostcann.inject("malloc", count=10)
        try:
            torch.empty(200 << 20, dtype=torch.uint8, device="npu")
        except torch.OutOfMemoryError:
            print("injected")
        """,
        HOSTCANN_MEMORY="64M",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "3.0", "100", "injected"]


@needs_torch_npu
@pytest.mark.parametrize(
    ("site", "name", "call"),
    [
        ("memcpy", "", "x.npu()"),
        ("synchronize", "", "torch.npu.synchronize()"),
        ("synchronize", "", "event.synchronize()"),
    ],
)
def test_an_injected_fault_reaches_torch_with_its_message_and_the_next_call_works(site, name, call):
    program = f"""
        import torch
        from ascend_sample import hostcann
        x, event = torch.ones(3), torch.npu.Event()
        event.record()
        torch.npu.synchronize()
        hostcann.inject({site!r}, {name!r}, message="the planted message")
        try:
            {call}
        except RuntimeError as error:
            print("the planted message" in str(error))
        hostcann.clear_faults()
        print(x.npu().cpu().sum().item(), hostcann.violations())
    """
    assert output(emulated(program)) == "True\n3.0 []"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hostcann.inject(1), "site must be a str, got int 1."),  # type: ignore[arg-type]
        (lambda: hostcann.inject("task", None), "name must be a str, got NoneType None."),  # type: ignore[arg-type]
        (lambda: hostcann.inject("task", message=b"x"), "message must be a str, got bytes"),  # type: ignore[arg-type]
        (lambda: hostcann.set_stream_mode(None), "mode must be a str, got NoneType None."),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_text_is_refused_by_name(call, message):
    with pytest.raises(TypeError, match=message):
        call()


@needs_torch_npu
def test_a_fault_of_the_function_by_which_torch_npu_allocates():
    done = emulated(
        """
        import torch
        from ascend_sample import hostcann
        torch.empty(1, device="npu")
        hostcann.inject("malloc", "aclrtMallocAlign32", count=10)
        try:
            torch.empty(100 << 20, device="npu")
        except torch.OutOfMemoryError:
            print("injected")
        """
    )
    assert done.stdout.strip() == "injected", done.stderr
