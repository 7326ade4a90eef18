"""The time on the device that `python -m jax_cxl bench` reads from a trace."""

import tempfile
from unittest import mock

import jax
import numpy as np
from absl.testing import absltest, parameterized
from jax.profiler import ProfileData

from jax_cxl._commands.measuring import device_time, measure, ops, routed
from jax_cxl._commands.measuring.device_time import Event, NoDeviceTimeError

_OURS = "jax_cxl::cuda::(anonymous namespace)::Execute(jax_cxl::cuda::DeviceCall, unsigned int)"
_WAIT = "jax_cxl::cuda::(anonymous namespace)::Wait(unsigned long const*, unsigned long)"
_NCCL = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
_FUSION = "loop_dynamic_update_slice_fusion"


def _profile(planes):
    """Returns a profile of {plane: {line: [(name, start, duration)]}}, in nanoseconds."""
    text = ""
    for plane, lines in planes.items():
        names = sorted({name for events in lines.values() for name, _, _ in events})
        text += f'planes {{ name: "{plane}"\n'
        for i, name in enumerate(names):
            text += f'event_metadata {{ key: {i} value {{ id: {i} name: "{name}" }} }}\n'
        for line, events in lines.items():
            text += f'lines {{ name: "{line}"\n'
            for name, start, duration in events:
                text += (
                    f"events {{ metadata_id: {names.index(name)} offset_ps: {start * 1000}"
                    f" duration_ps: {duration * 1000} }}\n"
                )
            text += "}\n"
        text += "}\n"
    return ProfileData.from_text_proto(text)


class OfCallsTest(parameterized.TestCase):
    def test_one_kernel_a_call(self):
        events = [
            *(Event(_FUSION, 12_000, 2_000), Event(_OURS, 15_000, 7_500)),
            *(Event(_OURS, 4_000, 8_000), Event(_NCCL, 0, 3_000)),
        ]
        self.assertEqual(device_time.of_calls(events, "jax_cxl", 2), [8.0, 7.5])
        self.assertEqual(device_time.of_calls(events, "nccl-shm", 1), [3.0])

    def test_from_the_first_start_to_the_last_end(self):
        # The second kernel of each call, on another stream, outlasts the third.
        events = []
        for call in (0, 100_000):
            events += [Event(f"jax_cxl::{i}", call + 1_000 * i, 50) for i in (0, 2)]
            events += [Event("jax_cxl::1", call + 1_000, 9_000), Event("MemcpyD2H", call + 900, 10)]
        self.assertEqual(device_time.of_calls(events, "jax_cxl", 2), [10.0, 10.0])

    @parameterized.parameters(
        ([Event(_FUSION, 0, 1)], "jax_cxl", "0 kernels of jax_cxl for 2 calls.*1 x loop_dyn"),
        ([Event(_OURS, 0, 1)] * 3, "jax_cxl", "3 kernels of jax_cxl for 2 calls"),
        ([Event(_NCCL, 0, 1)], "nccl-socket", "1 kernels of nccl-socket.*1 x ncclDevKernel"),
        # The host does most of the work of such a call, so the GPU runs only the kernel that waits.
        ([Event(_WAIT, 0, 1)] * 2, "jax_cxl", "0 kernels of jax_cxl"),
    )
    def test_says_what_there_is_instead(self, events, backend, message):
        with self.assertRaisesRegex(NoDeviceTimeError, message):
            device_time.of_calls(events, backend, 2)


class TraceTest(absltest.TestCase):
    def test_reads_the_streams_of_gpus(self):
        profile = _profile(
            {
                "/host:CPU": {"python": [("call", 0, 5)]},
                "/device:GPU:0": {
                    "Stream #14(Compute)": [(_OURS, 1_000, 250), (_FUSION, 2_000, 10)],
                    "Stream #15(MemcpyD2D)": [("MemcpyD2D", 3_000, 20)],
                    "XLA Ops": [("custom-call", 1_000, 250)],
                },
            }
        )
        self.assertCountEqual(
            device_time.read(profile),
            [(_OURS, 1_000, 250), (_FUSION, 2_000, 10), ("MemcpyD2D", 3_000, 20)],
        )

    def test_names_the_lines_of_other_traces(self):
        profile = _profile({"/host:CPU": {"python": [("call", 0, 5)]}, "/device:GPU:0": {}})
        with self.assertRaisesRegex(NoDeviceTimeError, "no streams.*/host:CPU 'python'"):
            device_time.read(profile)

    def test_runs_what_it_cannot_trace(self):
        ran = []
        with self.assertRaisesRegex(NoDeviceTimeError, "no streams of GPUs"):
            device_time.trace(lambda: ran.append("on a CPU"))
        with (
            tempfile.TemporaryDirectory() as folder,
            jax.profiler.trace(folder),
            self.assertRaisesRegex(NoDeviceTimeError, "did not start"),
        ):
            device_time.trace(lambda: ran.append("inside another trace"))
        self.assertEqual(ran, ["on a CPU", "inside another trace"])


class MeasureOnDeviceTest(absltest.TestCase):
    def measure(self, others, trace):
        """Measures as rank 1 of 2. Rank 0 sends the values of `others` one after another."""
        count = iter(others)
        world = mock.Mock(rank=1, size=2, gather=lambda mine: [next(count), mine])
        runner = mock.Mock(calls=2)
        cases = [
            measure.Case(
                mock.Mock(shape=ops.Shape(ops.OPS["psum"], 2, 1, n, np.dtype("int8"))), runners
            )
            for n, runners in ((8, {"jax_cxl": runner}), (2 << 20, {"jax_cxl": None}))
        ]
        with mock.patch.object(device_time, "trace", trace):
            found = list(measure.measure_on_device(world, cases, mock.Mock(turn="")))
        # The case of 2 MiB has no runner, so no call of 2 MiB was measured.
        self.assertEqual({shape.bytes for shape, _, _ in found} | {8}, {8})
        return {name: times for _, name, times in found}, runner

    def test_the_rank_that_waited_least(self):
        def trace(run):
            run()
            return [Event(_OURS, 0, 8_000), Event(_OURS, 20_000, 5_000)]

        times, runner = self.measure([2, 6.0, 9.0], trace)
        runner.run.assert_called_once_with(2)
        self.assertEqual(times["jax_cxl"], {"min": 5.0, "median": 5.5, "max": 6.0})

    def test_nothing_where_one_rank_has_no_trace(self):
        self.assertEqual(self.measure([0], lambda run: [Event(_OURS, 0, 8)] * 2)[0], {})

        def no_trace(run):
            raise NoDeviceTimeError("this test")

        self.assertEqual(self.measure([2], no_trace)[0], {})


class ReceiversTest(absltest.TestCase):
    def test_who_gets_data_of_others(self):
        receivers = {
            name: [rank for rank in range(3) if ops.Shape(op, 3, rank, 1, np.int8).receives()]
            for name, op in ops.OPS.items()
            if name.partition(":")[0] not in routed.NAMES
        }
        rooted = {"broadcast": [1, 2], "scatter": [1, 2], "reduce": [0], "gather": [0]}
        rooted["pscan"] = [1, 2]
        for name, ranks in receivers.items():
            self.assertEqual(ranks, rooted.get(name, [0, 1, 2]), name)


if __name__ == "__main__":
    absltest.main()
