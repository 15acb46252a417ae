//! One client at several nodes: `client.at()`, `node=`, `client.nodes()`.

use crate::waiting::without_gil;
use farrow::Members;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{IntoPyDict, PyList};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The spilling pool and the strict pool of one node, created on first use.
pub type Pools = [PyOnceLock<Py<PyAny>>; 2];

/// The pools of a connection at each node; shared by the clients that `at` returns.
pub struct NodePools {
    /// The region and the pools of the connected node.
    own: (u64, Arc<Pools>),
    /// Region and pools by name of the node: a node that lost its memory has another region.
    known: Mutex<HashMap<String, (u64, Arc<Pools>)>>,
}

impl NodePools {
    /// The pools of a client at its own node.
    pub fn new(client: &farrow::Client) -> Self {
        Self { own: (client.region_uid(), no_pools()), known: Mutex::default() }
    }

    /// The pools at the client's own node.
    pub fn own(&self) -> Arc<Pools> {
        Arc::clone(&self.own.1)
    }

    /// The pools at the node of `client`.
    pub fn pools(&self, node: &str, client: &farrow::Client) -> Arc<Pools> {
        let region = client.region_uid();
        if region == self.own.0 {
            return self.own();
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, pools)) = known.get(node)
            && *of == region
        {
            return Arc::clone(pools);
        }
        let pools = no_pools();
        let old = known.insert(node.to_owned(), (region, Arc::clone(&pools)));
        // Release the lock first: dropping the old pools may run Python code.
        drop(known);
        drop(old);
        pools
    }
}

fn no_pools() -> Arc<Pools> {
    Arc::new([const { PyOnceLock::new() }; 2])
}

/// `client` if no node is given, else the same connection at that node.
pub fn at<'a>(
    client: &'a farrow::Client,
    node: Option<&str>,
) -> Result<Cow<'a, farrow::Client>, farrow::Error> {
    match node {
        None => Ok(Cow::Borrowed(client)),
        Some(node) => client.at(node).map(Cow::Owned),
    }
}

/// The nodes as a list of `farrow.NodeInfo`.
pub fn infos<'py>(py: Python<'py>, client: &farrow::Client) -> PyResult<Bound<'py, PyList>> {
    static NODE_INFO: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let Members { nodes, .. } = without_gil(py, || client.members())?;
    let class = NODE_INFO.get_or_try_init(py, || {
        Ok::<_, PyErr>(py.import("farrow._values._types")?.getattr("NodeInfo")?.unbind())
    })?;
    let list = PyList::empty(py);
    for node in nodes {
        let own = (
            node.name,
            node.number,
            node.address,
            node.incarnation,
            if node.is_draining { "draining" } else { node.reach.as_str() },
            node.is_own,
            node.fabric,
            node.coherence,
            node.capacity,
            node.why_not,
        );
        let cost = [
            ("free", node.cost.free),
            ("latency_us", node.cost.latency_us),
            ("bytes_per_second", node.cost.bytes_per_second),
        ];
        list.append(class.bind(py).call(own, Some(&cost.into_py_dict(py)?))?)?;
    }
    Ok(list)
}
