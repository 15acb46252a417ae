//! Errors of the client as the exceptions of `farrow.exceptions`.

use farrow::Error;
use farrow::error::{
    BarrierBroken, NamespaceInUse, NoRoom, NodeUnreachable, NotPermitted, NotRestored, NotSpilled,
    OutOfMemory, QuotaExceeded, TooLarge,
};
use pyo3::panic::PanicException;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// Makes `exception_of` from lines `pattern => Class { attributes }`; the first that matches counts.
/// An attribute is a variable of the pattern, or has a value of its own.
macro_rules! exceptions {
    (@value $attribute:ident) => { $attribute };
    (@value $attribute:ident $value:expr) => { $value };
    ($(
        $pattern:pat $(if $guard:expr)? => $class:ident {
            $($attribute:ident $(: $value:expr)?),* $(,)?
        }
    )*) => {
        /// The exception that mirrors `error`, with its numbers as attributes.
        fn exception_of(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
            let text = error.to_string();
            match error {
                $($pattern $(if $guard)? => {
                    let made = PyErr::from_type(class(py, stringify!($class))?, text);
                    $(made.value(py).setattr(
                        stringify!($attribute),
                        exceptions!(@value $attribute $($value)?),
                    )?;)*
                    Ok(made)
                })*
            }
        }
    };
}

exceptions! {
    Error::NotFound { .. } | Error::NoNamespace(_) => NotFound {}
    Error::AlreadyExists { .. } => AlreadyExists {}
    Error::NotRestored(NotRestored { file, .. }) => NotRestored { file }
    Error::OutOfMemory(OutOfMemory { requested, free, largest, waiting, waited_ms }) => OutOfMemory {
        requested, free, largest, waiting, waited_seconds: seconds(*waited_ms)
    }
    Error::NoRoom(NoRoom { what, requested, free, largest, used, waiting, waited_ms }) => OutOfMemory {
        what, requested, free, largest, used, waiting, waited_seconds: seconds(*waited_ms)
    }
    Error::NoNodeHasRoom { requested, free, .. } => OutOfMemory { requested, free }
    Error::NotSpilled(NotSpilled {
        requested, free, largest, waited_ms, folder, bytes, reason
    }) => NotSpilled {
        requested, free, largest, waited_seconds: seconds(*waited_ms), folder, nbytes: bytes, reason
    }
    Error::TooLarge(TooLarge { requested, capacity }) => TooLarge { requested, capacity }
    Error::QuotaExceeded(QuotaExceeded {
        whose, what, requested, used, limit, waiting, waited_ms
    }) => QuotaExceeded {
        whose, what, requested, used, limit, waiting, waited_seconds: seconds(*waited_ms)
    }
    Error::TooMany { what, max } if what == "objects" => TooManyObjects { limit: max }
    Error::TooMany { max, .. } => LimitReached { limit: max }
    Error::NamespaceInUse(NamespaceInUse { objects, bytes, clients, .. }) => NamespaceInUse {
        objects, nbytes: bytes, clients
    }
    Error::RowsMissing { first, last, .. } => RowsMissing { first, last }
    Error::RowsTaken { taken_first, taken_last, version, .. } => RowsTaken {
        first: taken_first, last: taken_last, version
    }
    Error::Timeout { waited_ms, .. } => Timeout { waited_seconds: seconds(*waited_ms) }
    Error::InvalidDescriptor(_) => InvalidDescriptor {}
    Error::Disconnected { .. } | Error::NodeReplaced { .. } => Disconnected {}
    Error::NodeLost { node, .. } => NodeLost { node }
    Error::NodeUnreachable(NodeUnreachable { node, address, reason }) => NodeUnreachable {
        node, address, reason
    }
    Error::NodeDraining { node } => NodeDraining { node }
    Error::BarrierBroken(BarrierBroken { who, .. }) => BarrierBroken { who }
    Error::CutOff { node, .. } => CutOff { node }
    Error::PermissionDenied(_) => PermissionDenied {}
    Error::NotPermitted(NotPermitted { node, namespace, right }) => NotPermitted {
        node, namespace, right
    }
    Error::InvalidArgument(_) => InvalidArgument {}
    Error::Protocol(_) => ProtocolError {}
    _ => FarrowError {}
}

/// The class of this name.
fn class<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyType>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module =
        MODULE.get_or_try_init(py, || Ok::<_, PyErr>(py.import("farrow.exceptions")?.unbind()))?;
    Ok(module.bind(py).getattr(name)?.cast_into::<PyType>()?)
}

fn seconds(millis: u64) -> f64 {
    millis as f64 / 1e3
}

fn new(name: &str, text: impl Into<String>) -> PyErr {
    Python::attach(|py| match class(py, name) {
        Ok(class) => PyErr::from_type(class, text.into()),
        Err(error) => error,
    })
}

/// `InvalidArgument`.
pub fn invalid_argument(text: impl Into<String>) -> PyErr {
    new("InvalidArgument", text)
}

/// `NotFound`.
pub fn not_found(text: impl Into<String>) -> PyErr {
    new("NotFound", text)
}

/// `UnsupportedType`.
pub fn unsupported(text: impl Into<String>) -> PyErr {
    new("UnsupportedType", text)
}

/// `FarrowError` itself.
pub fn farrow_error(text: impl Into<String>) -> PyErr {
    new("FarrowError", text)
}

/// The exception that mirrors `error`, with its numbers as attributes.
pub fn raise(error: impl Into<Error>) -> PyErr {
    let error = error.into();
    Python::attach(|py| exception_of(py, &error).unwrap_or_else(|failed| failed))
}

/// `InternalError`: a caught panic, or another violated invariant.
pub fn defect(text: impl Into<String>) -> PyErr {
    PanicException::new_err(text.into())
}
