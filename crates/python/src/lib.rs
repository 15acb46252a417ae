//! `farrow._native`: the Python binding of the client.
//!
//! It converts Python values to arguments of the `farrow` crate and back, and has no logic of its
//! own. Arrow values pass through the C Data Interface. A library of its own for each libarrow, the
//! bridge (`cpp/bridge.cc`), subclasses `arrow::MemoryPool`, and makes pyarrow objects faster.
//! `python/farrow` imports it; `python/farrow/_native.pyi` lists its exports.
//!
//! Loading it needs neither pyarrow nor libarrow: a node runs without them (`_nodes/_node.py`).

/// The docstring of an item from `_native.pyi`, its only source.
macro_rules! doc {
    ($item:literal) => {
        include_str!(concat!(env!("OUT_DIR"), "/doc/", $item, ".txt"))
    };
}

mod certs;
mod client;
mod dissociated;
mod errors;
mod events;
mod graph;
mod huge;
mod incoming;
mod lab;
mod labels;
mod lazy;
mod listing;
mod namespaces;
mod node;
mod nodes;
mod numpy;
mod outgoing;
mod part;
mod pinned;
mod plain;
mod pool;
mod pyarrow;
mod reference;
mod settings;
mod sharing;
mod waiting;
mod warm;
mod writer;

use pyo3::panic::PanicException;
use pyo3::prelude::*;

/// The Python binding of Farrow; use it through the package `farrow`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    farrow::interrupt::check_on_all_threads(waiting::has_raised);
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    // The class of a panic that reaches Python; `farrow.exceptions` makes it an `Exception`.
    module.add("InternalError", module.py().get_type::<PanicException>())?;
    module.add_class::<client::PyClient>()?;
    module.add_class::<dissociated::DissociatedMessages>()?;
    module.add_class::<events::EventStream>()?;
    module.add_class::<graph::GraphEngine>()?;
    module.add_class::<graph::GraphFrozen>()?;
    module.add_class::<graph::GraphPlan>()?;
    module.add_class::<graph::GraphSegment>()?;
    module.add_class::<huge::PyHugeTable>()?;
    module.add_class::<lab::LabArena>()?;
    module.add_class::<node::CopyBuffers>()?;
    module.add_class::<reference::ObjectRef>()?;
    module.add_class::<waiting::PyCancelToken>()?;
    module.add_class::<sharing::SharedReference>()?;
    module.add_class::<writer::PyWriter>()?;
    module.add_function(wrap_pyfunction!(bridge_series, module)?)?;
    module.add_function(wrap_pyfunction!(certs::init, module)?)?;
    module.add_function(wrap_pyfunction!(certs::issue, module)?)?;
    module.add_function(wrap_pyfunction!(certs::revoke, module)?)?;
    module.add_function(wrap_pyfunction!(client::connect, module)?)?;
    module.add_function(wrap_pyfunction!(dissociated::export, module)?)?;
    module.add_function(wrap_pyfunction!(dissociated::import_table, module)?)?;
    module.add_function(wrap_pyfunction!(huge::table_statistics, module)?)?;
    module.add_function(wrap_pyfunction!(lab::lab_fit, module)?)?;
    module.add_function(wrap_pyfunction!(lab::lab_methods, module)?)?;
    module.add_function(wrap_pyfunction!(lab::lab_profile, module)?)?;
    module.add_function(wrap_pyfunction!(lazy::fetch_pages, module)?)?;
    module.add_function(wrap_pyfunction!(node::node_main, module)?)?;
    module.add_function(wrap_pyfunction!(node::survey, module)?)?;
    module.add_function(wrap_pyfunction!(node::leftovers, module)?)?;
    module.add_function(wrap_pyfunction!(node::stats_units, module)?)?;
    module.add_function(wrap_pyfunction!(sharing::share, module)?)?;
    module.add_function(wrap_pyfunction!(sharing::put_shared, module)?)?;
    module.add_function(wrap_pyfunction!(sharing::open_shared, module)?)?;
    module.add_function(wrap_pyfunction!(panic_on_purpose, module)?)?;
    Ok(())
}

#[doc = doc!("bridge_series")]
#[pyfunction]
fn bridge_series(py: Python<'_>) -> PyResult<Option<&'static str>> {
    Ok(pyarrow::Pyarrow::get(py)?.bridge_series())
}

#[doc = doc!("panic_on_purpose")]
#[pyfunction]
fn panic_on_purpose(py: Python<'_>, text: &str) -> PyResult<()> {
    #[expect(clippy::panic, reason = "that is its purpose")]
    waiting::without_gil(py, || -> Result<(), farrow::Error> { panic!("{text}") })
}
