"""What happens if Python is interrupted while jax_cxl translates an error of JAX."""

import sys
from unittest import mock

import jax
from absl.testing import absltest

from jax_cxl import _core
from jax_cxl._job.ending import program_errors


@jax.jit
def _fails():
    raise ValueError("the reason")


class DispatchErrorsTest(absltest.TestCase):
    def translate(self, error):
        def raises(_):
            raise error

        jitted = type(jax.jit(lambda: None))
        _core.translate_dispatch_errors(jitted, raises)
        self.addCleanup(_core.translate_dispatch_errors, jitted, program_errors._make)

    def test_an_interrupt_ends_the_program(self):
        self.translate(KeyboardInterrupt())
        with mock.patch.object(sys, "unraisablehook") as hook:
            with self.assertRaises(KeyboardInterrupt):
                _fails()
            hook.assert_not_called()

    def test_another_error_is_told_and_the_error_of_jax_stays(self):
        self.translate(RuntimeError("a fault"))
        with mock.patch.object(sys, "unraisablehook") as hook:
            with self.assertRaisesRegex(ValueError, "the reason"):
                _fails()
            hook.assert_called_once()

    def test_another_type_is_refused(self):
        with self.assertRaises(TypeError):
            _core.translate_dispatch_errors(str, print)


if __name__ == "__main__":
    absltest.main()
