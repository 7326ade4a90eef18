#include "cc/python/uncaught_exit.h"

namespace nb = nanobind;

namespace jax_cxl {
namespace {

// The original slots of SystemExit.
initproc initialize = nullptr;
destructor deallocate = nullptr;

unsigned long main_thread = 0;
PyObject* last =
    nullptr;  // last one of the main thread; borrowed; null when freed
PyObject* code = nullptr;  // of a SystemExit that no frame could catch

bool InMainThread() { return PyThread_get_thread_ident() == main_thread; }

int NoteInitialize(PyObject* self, PyObject* args, PyObject* kwargs) {
  if (InMainThread()) last = self;
  return initialize(self, args, kwargs);
}

void NoteDeallocate(PyObject* self) {
  if (self == last) {
    last = nullptr;
    if (InMainThread() && PyEval_GetFrame() == nullptr)
      Py_XSETREF(code,
                 Py_XNewRef(reinterpret_cast<PySystemExitObject*>(self)->code));
  }
  deallocate(self);
}

void Watch() {
  auto* type = reinterpret_cast<PyTypeObject*>(PyExc_SystemExit);
  if (type->tp_dealloc == NoteDeallocate) return;
  nb::object thread = nb::module_::import_("threading").attr("main_thread")();
  main_thread = nb::cast<unsigned long>(thread.attr("ident"));
  initialize = type->tp_init;
  deallocate = type->tp_dealloc;
  type->tp_init = NoteInitialize;
  type->tp_dealloc = NoteDeallocate;
}

nb::object Uncaught() {
  if (code != nullptr) return nb::borrow(code);
  // It lives because a frame of its traceback refers to it, as in absl.app. (Or
  // because the program caught and kept it. The two cases look the same.)
  return last == nullptr ? nb::none() : nb::handle(last).attr("code");
}

}  // namespace

void BindUncaughtExit(nb::module_& m) {
  m.def("watch_exit", &Watch, "Starts to watch; uncaught_exit() requires it.");
  m.def("uncaught_exit", &Uncaught,
        "Returns the `code` of the SystemExit that ends the program, or None. "
        "For handlers that run at exit.");
}

}  // namespace jax_cxl
