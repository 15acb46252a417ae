//! A lease includes the time for which the machine was suspended. It was measured with a clock that
//! stands still meanwhile: a client that ran before the daemon after the machine had resumed read
//! copies of objects that their home might have deleted.
//!
//! A time namespace, in which the machine has been suspended for an hour more, stands for it. That
//! needs root and `unshare`: prints a message without them, and fails with `FARROW_NETNS=require`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::netns::required;
use common::nodes::DaemonNodes;
use common::{client_at, this_test_again};
use farrow::{Client, Error, Value};
use farrow_wire::BootTime;

const HOUR: Duration = Duration::from_secs(3600);
/// Set for a child in the namespace: the socket of a node.
const SUSPENDED: &str = "FARROW_TEST_SUSPENDED";

/// Runs a test of this file again as on a machine that was suspended for an hour.
fn run_suspended(test: &str, socket: &Path) -> Option<()> {
    let offset = HOUR.as_secs().to_string();
    let suspended = ["--time", "--boottime", &offset];
    let probe = Command::new("unshare").args(suspended).arg("true").stderr(Stdio::null()).status();
    required(match probe {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err("no time namespace may be created".to_owned()),
        Err(error) => Err(format!("unshare: {error}")),
    })?;
    let test = this_test_again(test);
    let mut child = Command::new("unshare");
    child.args(suspended).arg(test.get_program()).args(test.get_args());
    let output = child.env(SUSPENDED, socket).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    Some(())
}

fn get(client: &Client) -> Result<usize, Error> {
    Ok(client.get(&"object".into(), Duration::ZERO)?.view()?.len())
}

#[test]
fn a_client_reads_no_copies_after_a_lease_that_ended_during_a_suspension() {
    if let Some(socket) = std::env::var_os(SUSPENDED) {
        // The daemon's lease ended an hour ago, by the clock of this process.
        let refused = get(&client_at(Path::new(&socket)));
        assert!(matches!(refused, Err(Error::Timeout { .. })), "{refused:?}");
        return;
    }
    let nodes = DaemonNodes::start(2, "16MiB", &["--no-prepare", "--net", "only"]);
    let (a, b) = (nodes.client(0), nodes.client(1));
    b.put(&Value::Bytes(&[7; 100_000]), Some("object")).unwrap();
    assert_eq!(get(&a).unwrap(), 100_000);
    let test = "a_client_reads_no_copies_after_a_lease_that_ended_during_a_suspension";
    let _ = run_suspended(test, &nodes.daemons[0].socket);
    assert_eq!(get(&a).unwrap(), 100_000);
}

#[test]
fn the_clock_of_leases_includes_suspensions() {
    if std::env::var_os(SUSPENDED).is_none() {
        let _ = run_suspended("the_clock_of_leases_includes_suspensions", Path::new(""));
        return;
    }
    let awake = Duration::from_nanos(farrow_wire::awake_ns());
    let now = Duration::from_nanos(BootTime::now().as_nanos());
    assert!(now >= awake + HOUR, "{now:?} {awake:?}");
    let (then, since) = (BootTime::now().earlier_by(HOUR), Instant::now());
    let elapsed_ms = BootTime::now().ms_since(then);
    let most = HOUR + since.elapsed() + Duration::from_secs(1);
    assert!((3_600_000..=most.as_millis() as u64).contains(&elapsed_ms), "{elapsed_ms}");
    assert_eq!(then.ms_since(BootTime::now()), 0);
}
