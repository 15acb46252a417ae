//! `farrow certs`: the certificates with which nodes authenticate each other.

use crate::errors::{farrow_error, invalid_argument};
use farrow_cluster::certs::{self, CertsError};
use pyo3::exceptions::{PyFileExistsError, PyOSError};
use pyo3::prelude::*;
use std::path::PathBuf;
use std::time::Duration;

const SECONDS_PER_DAY: u64 = 86_400;

fn days(days: &Bound<'_, PyAny>) -> PyResult<Duration> {
    let count: u32 =
        days.extract().map_err(|_| invalid_argument(format!("to be valid for {days} days")))?;
    Ok(Duration::from_secs(u64::from(count) * SECONDS_PER_DAY))
}

fn raise(error: CertsError) -> PyErr {
    match error {
        CertsError::Exists(_) => PyFileExistsError::new_err(error.to_string()),
        CertsError::File { path, error } => match error.raw_os_error() {
            Some(number) => PyOSError::new_err((number, error.to_string(), path)),
            None => PyOSError::new_err(format!("{}: {error}", path.display())),
        },
        CertsError::Name(_)
        | CertsError::Host(_)
        | CertsError::TooManyHosts { .. }
        | CertsError::Validity { .. } => invalid_argument(error.to_string()),
        error => farrow_error(error.to_string()),
    }
}

#[doc = doc!("certs_init")]
#[pyfunction]
#[pyo3(name = "certs_init", signature = (folder, days))]
pub fn init(py: Python<'_>, folder: PathBuf, days: &Bound<'_, PyAny>) -> PyResult<()> {
    let validity = self::days(days)?;
    py.detach(|| certs::init(&folder, validity)).map_err(raise)
}

#[doc = doc!("certs_issue")]
#[pyfunction]
#[pyo3(name = "certs_issue", signature = (folder, name, hosts, days))]
pub fn issue(
    py: Python<'_>,
    folder: PathBuf,
    name: &str,
    hosts: Vec<String>,
    days: &Bound<'_, PyAny>,
) -> PyResult<(String, String)> {
    let validity = self::days(days)?;
    let files = py.detach(|| certs::issue(&folder, name, &hosts, validity));
    let files = files.map_err(raise)?;
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    Ok((text(files.certificate), text(files.key)))
}

#[doc = doc!("certs_revoke")]
#[pyfunction]
#[pyo3(name = "certs_revoke", signature = (folder, name))]
pub fn revoke(py: Python<'_>, folder: PathBuf, name: &str) -> PyResult<String> {
    let list = py.detach(|| certs::revoke(&folder, name)).map_err(raise)?;
    Ok(list.to_string_lossy().into_owned())
}
