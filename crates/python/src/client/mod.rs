//! `farrow.Client`, its end, and its memory.
//!
//! Its other methods: `objects` puts, gets and lists; `cluster` has nodes, namespaces, permissions
//! and what clients of several nodes agree on.

mod cluster;
mod objects;

use crate::errors::{invalid_argument, raise};
use crate::nodes::{NodePools, Pools};
use crate::pool;
use crate::pyarrow::Pyarrow;
use crate::waiting::without_gil;
use crate::warm;
use farrow::{ConnectOptions, Object, ObjectKey, SpawnCommand};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// Limit of timeouts, also for infinite ones: a hundred years.
const TIMEOUT_SECONDS_MAX: f64 = 100.0 * 365.0 * 86_400.0;

pub fn duration(seconds: f64) -> PyResult<Duration> {
    if seconds.is_nan() || seconds < 0.0 {
        return Err(invalid_argument(format!("a timeout of {seconds} seconds")));
    }
    Ok(Duration::from_secs_f64(seconds.min(TIMEOUT_SECONDS_MAX)))
}

/// The error of a call on a closed client.
fn closed(address: &OsStr) -> PyErr {
    raise(farrow::Error::Disconnected {
        socket: PathBuf::from(address),
        reason: "the client is closed".to_owned(),
    })
}

#[doc = doc!("connect")]
#[pyfunction]
#[pyo3(signature = (address, timeout, program=None, arguments=None, namespace=""))]
pub fn connect(
    py: Python<'_>,
    address: Option<PathBuf>,
    timeout: f64,
    program: Option<PathBuf>,
    arguments: Option<Vec<OsString>>,
    namespace: &str,
) -> PyResult<PyClient> {
    static WARM: PyOnceLock<()> = PyOnceLock::new();
    // Loaded before the first call that is measured or holds locks.
    Pyarrow::get(py)?;
    let options = ConnectOptions {
        socket: address,
        timeout: duration(timeout)?,
        spawn: program.map(|program| SpawnCommand {
            program,
            arguments: arguments.unwrap_or_default(),
            memory: None,
            linger: None,
        }),
        namespace: namespace.to_owned(),
    };
    let client = without_gil(py, || farrow::Client::connect(&options))?;
    WARM.get_or_init(py, || warm::rebuild_a_table(py));
    warm::search(&client);
    let places = Arc::new(NodePools::new(&client));
    Ok(PyClient::new(OpenClient { pools: places.own(), client, places }))
}

#[doc = doc!("Client")]
#[pyclass(frozen, weakref, module = "farrow", name = "Client")]
pub struct PyClient {
    address: OsString,
    namespace: String,
    /// `None` after `close`.
    open: RwLock<Option<Arc<OpenClient>>>,
}

/// What `close` releases.
struct OpenClient {
    client: farrow::Client,
    /// The pools of its node.
    pools: Arc<Pools>,
    /// The pools at nodes selected by name.
    places: Arc<NodePools>,
}

impl PyClient {
    fn new(open: OpenClient) -> Self {
        PyClient {
            address: open.client.socket().as_os_str().to_owned(),
            namespace: open.client.namespace().to_owned(),
            open: RwLock::new(Some(Arc::new(open))),
        }
    }

    fn open(&self) -> PyResult<Arc<OpenClient>> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.clone().ok_or_else(|| closed(&self.address))
    }

    /// An object in memory. Nothing runs Python code while the lock is held, so `close` cannot be
    /// called inside.
    fn get_here(&self, target: &ObjectKey) -> PyResult<Option<Object>> {
        let found = {
            let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
            open.as_ref().map(|open| open.client.get_here(target))
        };
        found.ok_or_else(|| closed(&self.address))?.map_err(raise)
    }

    /// The client of the connection.
    pub fn inner(&self) -> PyResult<farrow::Client> {
        Ok(self.open()?.client.clone())
    }
}

#[pymethods]
impl PyClient {
    /// A connection and mapped memory belong to their process.
    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "a Client cannot be pickled or copied: call farrow.connect() in the other process, and \
             send it names, ids or ObjectRefs",
        ))
    }

    #[doc = doc!("Client.address")]
    #[getter]
    fn address(&self) -> OsString {
        self.address.clone()
    }

    #[doc = doc!("Client.namespace")]
    #[getter]
    fn namespace(&self) -> &str {
        &self.namespace
    }

    #[doc = doc!("Client.memory_pool")]
    #[pyo3(signature = (*, strict=false, node=None, expect=None))]
    fn memory_pool(
        &self,
        py: Python<'_>,
        strict: bool,
        node: Option<&str>,
        expect: Option<pool::Expect>,
    ) -> PyResult<Py<PyAny>> {
        let open = self.open()?;
        if let Some(node) = node {
            let bytes = expect.as_ref().map_or(0, pool::Expect::bytes);
            let (node, client) = without_gil(py, || open.client.at_pool_node(node, bytes))?;
            let pools = open.places.pools(&node, &client);
            let there = OpenClient { client, pools, places: Arc::clone(&open.places) };
            return PyClient::new(there).memory_pool(py, strict, None, expect);
        }
        if let Some(expect) = expect {
            return pool::expecting(py, open.client.pool(), strict, &expect);
        }
        let [spilling, strict_one] = &*open.pools;
        let place = if strict { strict_one } else { spilling };
        let pool = place.get_or_try_init(py, || pool::new(py, open.client.pool(), strict))?;
        Ok(pool.clone_ref(py))
    }

    #[doc = doc!("Client.locate")]
    fn locate<'py>(
        this: &Bound<'py, Self>,
        obj: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        static LOCATE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = this.py();
        let locate = LOCATE.get_or_try_init(py, || {
            Ok::<_, PyErr>(py.import("farrow._values._locate")?.getattr("locate")?.unbind())
        })?;
        locate.bind(py).call1((this, obj))
    }

    #[doc = doc!("Client._offset")]
    fn _offset(&self, address: usize, size: usize) -> Option<u64> {
        let open = self.open().ok()?;
        open.client.locate(address as *const u8, size).map(|offset| offset.0)
    }

    #[doc = doc!("Client.close")]
    fn close(&self, py: Python<'_>) {
        let open = self.open.write().unwrap_or_else(PoisonError::into_inner).take();
        // The end of a session waits for the node's answer.
        py.detach(|| drop(open));
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> bool {
        self.close(py);
        false
    }

    /// A client is true also while its node has no objects.
    fn __bool__(&self) -> bool {
        true
    }

    fn _repr_html_<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = this.py();
        py.import("farrow._pages._html")?.getattr("client_page")?.call1((this,))
    }

    fn __repr__(&self) -> String {
        let socket = self.address.display();
        let Ok(open) = self.open() else {
            return format!("<farrow.Client of {socket}, closed>");
        };
        match open.client.node() {
            Ok(Some(node)) => format!("<farrow.Client of {socket} at {node}>"),
            _ => format!("<farrow.Client of {socket}>"),
        }
    }
}
