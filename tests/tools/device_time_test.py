"""The time on the device that benchmarks/collectives/device_time.py reads from a trace."""

import tempfile

import jax
from absl.testing import absltest, parameterized
from jax.profiler import ProfileData

from benchmarks.collectives import device_time
from benchmarks.collectives.device_time import Event, NoDeviceTimeError

_OURS = "jax_cxl::cuda::(anonymous namespace)::Execute(jax_cxl::cuda::DeviceCall, unsigned int)"
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
        self.assertEqual(device_time.of_calls(events, "nccl", 1), [3.0])

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
        ([Event(_NCCL, 0, 1)], "nccl", "1 kernels of nccl .*1 x ncclDevKernel"),
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


if __name__ == "__main__":
    absltest.main()
