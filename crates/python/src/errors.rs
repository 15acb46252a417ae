//! Errors of the client as the exceptions of `farrow.exceptions`.

use farrow::Error;
use pyo3::panic::PanicException;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// The classes, imported once.
struct Classes {
    already_exists: Py<PyType>,
    barrier_broken: Py<PyType>,
    cut_off: Py<PyType>,
    disconnected: Py<PyType>,
    farrow_error: Py<PyType>,
    invalid_argument: Py<PyType>,
    invalid_descriptor: Py<PyType>,
    limit_reached: Py<PyType>,
    namespace_in_use: Py<PyType>,
    node_lost: Py<PyType>,
    node_unreachable: Py<PyType>,
    node_draining: Py<PyType>,
    not_granted: Py<PyType>,
    not_found: Py<PyType>,
    not_restored: Py<PyType>,
    not_spilled: Py<PyType>,
    out_of_memory: Py<PyType>,
    permission_denied: Py<PyType>,
    protocol_error: Py<PyType>,
    quota_exceeded: Py<PyType>,
    rows_missing: Py<PyType>,
    rows_taken: Py<PyType>,
    timeout: Py<PyType>,
    too_large: Py<PyType>,
    too_many_objects: Py<PyType>,
    unsupported_type: Py<PyType>,
}

fn classes(py: Python<'_>) -> PyResult<&'static Classes> {
    static CLASSES: PyOnceLock<Classes> = PyOnceLock::new();
    CLASSES.get_or_try_init(py, || {
        let module = py.import("farrow.exceptions")?;
        let class = |name: &str| -> PyResult<Py<PyType>> {
            Ok(module.getattr(name)?.cast_into::<PyType>()?.unbind())
        };
        Ok(Classes {
            already_exists: class("AlreadyExists")?,
            barrier_broken: class("BarrierBroken")?,
            cut_off: class("CutOff")?,
            disconnected: class("Disconnected")?,
            farrow_error: class("FarrowError")?,
            invalid_argument: class("InvalidArgument")?,
            invalid_descriptor: class("InvalidDescriptor")?,
            limit_reached: class("LimitReached")?,
            namespace_in_use: class("NamespaceInUse")?,
            node_lost: class("NodeLost")?,
            node_unreachable: class("NodeUnreachable")?,
            node_draining: class("NodeDraining")?,
            not_granted: class("NotGranted")?,
            not_found: class("NotFound")?,
            not_restored: class("NotRestored")?,
            not_spilled: class("NotSpilled")?,
            out_of_memory: class("OutOfMemory")?,
            permission_denied: class("PermissionDenied")?,
            protocol_error: class("ProtocolError")?,
            quota_exceeded: class("QuotaExceeded")?,
            rows_missing: class("RowsMissing")?,
            rows_taken: class("RowsTaken")?,
            timeout: class("Timeout")?,
            too_large: class("TooLarge")?,
            too_many_objects: class("TooManyObjects")?,
            unsupported_type: class("UnsupportedType")?,
        })
    })
}

fn new(pick: impl FnOnce(&'static Classes) -> &'static Py<PyType>, text: String) -> PyErr {
    Python::attach(|py| match classes(py) {
        Ok(classes) => PyErr::from_type(pick(classes).bind(py).clone(), text),
        Err(error) => error,
    })
}

/// `InvalidArgument`.
pub fn invalid_argument(text: impl Into<String>) -> PyErr {
    new(|classes| &classes.invalid_argument, text.into())
}

/// `NotFound`.
pub fn not_found(text: impl Into<String>) -> PyErr {
    new(|classes| &classes.not_found, text.into())
}

/// `UnsupportedType`.
pub fn unsupported(text: impl Into<String>) -> PyErr {
    new(|classes| &classes.unsupported_type, text.into())
}

/// `FarrowError` itself.
pub fn farrow_error(text: impl Into<String>) -> PyErr {
    new(|classes| &classes.farrow_error, text.into())
}

/// The exception that mirrors `error`, with its numbers as attributes.
pub fn raise(error: impl Into<Error>) -> PyErr {
    let error = error.into();
    let text = error.to_string();
    let made = new(|classes| class_of(classes, &error), text);
    Python::attach(|py| {
        let set = |name: &str, number: u64| made.value(py).setattr(name, number);
        let set_seconds =
            |millis: u64| made.value(py).setattr("waited_seconds", millis as f64 / 1e3);
        let done = match error {
            Error::OutOfMemory { asked, free, largest, waiting, waited_ms } => set("asked", asked)
                .and(set("free", free))
                .and(set("largest", largest))
                .and(set("waiting", waiting))
                .and(set_seconds(waited_ms)),
            Error::NoRoom { ref what, asked, free, largest, used, waiting, waited_ms } => {
                set("asked", asked)
                    .and(set("free", free))
                    .and(set("largest", largest))
                    .and(set("used", used))
                    .and(set("waiting", waiting))
                    .and(set_seconds(waited_ms))
                    .and(made.value(py).setattr("what", what))
            }
            Error::NotSpilled {
                asked,
                free,
                largest,
                waited_ms,
                ref folder,
                bytes,
                ref reason,
            } => set("asked", asked)
                .and(set("free", free))
                .and(set("largest", largest))
                .and(set_seconds(waited_ms))
                .and(set("nbytes", bytes))
                .and(made.value(py).setattr("folder", folder))
                .and(made.value(py).setattr("reason", reason)),
            Error::NoNodeHasRoom { asked, free, .. } => set("asked", asked).and(set("free", free)),
            Error::TooLarge { asked, capacity } => {
                set("asked", asked).and(set("capacity", capacity))
            }
            Error::TooMany { max, .. } => set("limit", max),
            Error::QuotaExceeded {
                ref whose,
                ref what,
                asked,
                used,
                limit,
                waiting,
                waited_ms,
            } => set("asked", asked)
                .and(set("used", used))
                .and(set("limit", limit))
                .and(set("waiting", waiting))
                .and(set_seconds(waited_ms))
                .and(made.value(py).setattr("what", what))
                .and(made.value(py).setattr("whose", whose)),
            Error::NamespaceInUse { objects, bytes, clients, .. } => {
                set("objects", objects).and(set("nbytes", bytes)).and(set("clients", clients))
            }
            Error::Timeout { waited_ms, .. } => set_seconds(waited_ms),
            Error::NodeLost { ref node, .. }
            | Error::CutOff { ref node, .. }
            | Error::NodeDraining { ref node } => made.value(py).setattr("node", node),
            Error::NodeUnreachable { ref node, ref address, ref reason } => {
                let value = made.value(py);
                (value.setattr("node", node))
                    .and(value.setattr("address", address))
                    .and(value.setattr("reason", reason))
            }
            Error::NotGranted { ref node, ref namespace, ref right } => {
                let value = made.value(py);
                (value.setattr("node", node))
                    .and(value.setattr("namespace", namespace))
                    .and(value.setattr("right", right))
            }
            Error::BarrierBroken { ref who, .. } => made.value(py).setattr("who", who),
            Error::RowsMissing { first, last, .. } => set("first", first).and(set("last", last)),
            Error::RowsTaken { taken_first, taken_last, version, .. } => {
                set("first", taken_first).and(set("last", taken_last)).and(set("version", version))
            }
            Error::NotRestored { ref file, .. } => made.value(py).setattr("file", file),
            _ => Ok(()),
        };
        done.err().unwrap_or(made)
    })
}

fn class_of(classes: &'static Classes, error: &Error) -> &'static Py<PyType> {
    match error {
        Error::NotFound { .. } | Error::NoNamespace { .. } => &classes.not_found,
        Error::NamespaceInUse { .. } => &classes.namespace_in_use,
        Error::NotRestored { .. } => &classes.not_restored,
        Error::AlreadyExists { .. } => &classes.already_exists,
        Error::RowsMissing { .. } => &classes.rows_missing,
        Error::RowsTaken { .. } => &classes.rows_taken,
        Error::OutOfMemory { .. } | Error::NoRoom { .. } | Error::NoNodeHasRoom { .. } => {
            &classes.out_of_memory
        }
        Error::NotSpilled { .. } => &classes.not_spilled,
        Error::TooLarge { .. } => &classes.too_large,
        Error::QuotaExceeded { .. } => &classes.quota_exceeded,
        Error::TooMany { what, .. } if what == "objects" => &classes.too_many_objects,
        Error::TooMany { .. } => &classes.limit_reached,
        Error::Timeout { .. } => &classes.timeout,
        Error::InvalidDescriptor(_) => &classes.invalid_descriptor,
        Error::Disconnected { .. } | Error::NodeReplaced { .. } => &classes.disconnected,
        Error::BarrierBroken { .. } => &classes.barrier_broken,
        Error::NodeLost { .. } => &classes.node_lost,
        Error::NodeUnreachable { .. } => &classes.node_unreachable,
        Error::NodeDraining { .. } => &classes.node_draining,
        Error::CutOff { .. } => &classes.cut_off,
        Error::PermissionDenied(_) => &classes.permission_denied,
        Error::NotGranted { .. } => &classes.not_granted,
        Error::InvalidArgument(_) => &classes.invalid_argument,
        Error::Protocol(_) => &classes.protocol_error,
        _ => &classes.farrow_error,
    }
}

/// `InternalError`: a caught panic, or another violated invariant.
pub fn defect(text: impl Into<String>) -> PyErr {
    PanicException::new_err(text.into())
}
