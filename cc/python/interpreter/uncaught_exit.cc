#include "cc/python/interpreter/type_slots.h"
#include "cc/python/shared/bindings.h"

namespace nb = nanobind;

namespace jax_cxl {
namespace {

// The original functions in the slots of SystemExit.
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
    if (InMainThread() && PyEval_GetFrame() == nullptr) {
      // Read the attribute from the structure. Python cannot look up an
      // attribute of an object that has no references left.
      PyObject* const previous = code;
      code = Py_XNewRef(type_slots::CodeOfSystemExit(self));
      Py_XDECREF(previous);
    }
  }
  deallocate(self);
}

void Watch() {
  auto* type = reinterpret_cast<PyTypeObject*>(PyExc_SystemExit);
  if (PyType_GetSlot(type, Py_tp_dealloc) ==
      reinterpret_cast<void*>(NoteDeallocate))
    return;
  nb::object example = nb::borrow(PyExc_SystemExit)("example");
  if (!type_slots::LayoutIsKnown(type) ||
      type_slots::CodeOfSystemExit(example.ptr()) !=
          nb::object(example.attr("code")).ptr())
    throw nb::type_error("this version of Python has other types");
  nb::object thread = nb::module_::import_("threading").attr("main_thread")();
  main_thread = nb::cast<unsigned long>(thread.attr("ident"));
  initialize = type_slots::SetInit(type, NoteInitialize);
  deallocate = type_slots::SetDealloc(type, NoteDeallocate);
}

nb::object Uncaught() {
  if (code != nullptr) return nb::borrow(code);
  // The exception is still alive because a frame of its traceback refers to it,
  // as in absl.app. (The program may also have caught and kept it. The two
  // cases look the same.)
  return last == nullptr ? nb::none() : nb::handle(last).attr("code");
}

}  // namespace

// Adds watch_exit() and uncaught_exit() to the module.
//
// When a program ends, its exit handler must tell the peers whether the program
// failed. Python keeps an uncaught exception in sys.last_value, but drops an
// uncaught SystemExit before it calls exit handlers. Therefore this module
// changes slots of the type SystemExit, to note the last SystemExit of the main
// thread and when it is freed. If the exception is freed while a frame is
// running, the program has caught it. If it is uncaught, it is freed when no
// frame is left, or is still alive at exit.
void BindUncaughtExit(nb::module_& m) {
  m.def("watch_exit", &Watch, "Starts to watch; uncaught_exit() requires it.");
  m.def("uncaught_exit", &Uncaught,
        "Returns the `code` of the SystemExit that ends the program, or None. "
        "For handlers that run at exit.");
}

}  // namespace jax_cxl
