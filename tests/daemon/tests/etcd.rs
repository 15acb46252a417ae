//! Nodes with membership in a real etcd. Without an etcd, the tests print a message and do nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::etcd::EtcdServers;
use common::nodes::{DaemonNodes, wait_for};
use common::{Daemon, PATIENCE, client_at};
use farrow::{Client, ConnectOptions, Error, Members, Reach, Value};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use rustix::process::{Pid, Signal, kill_process};

const NOW: Duration = Duration::ZERO;
const SOON: Duration = Duration::from_secs(20);
/// Where nothing is killed: on a busy machine a live node is not to be thought lost.
const CALM_MS: &str = "20000";
/// Where something is to be lost.
const SHORT_MS: &str = "2000";

fn start(count: usize, place: &str, lease_ms: &str, more: &[&str]) -> DaemonNodes {
    let mut words = vec!["--membership", place, "--lease-ms", lease_ms, "--no-prepare"];
    words.extend(more);
    DaemonNodes::start(count, "32MiB", &words)
}

fn put(client: &Client, name: &str) {
    client.put(&Value::Bytes(name.as_bytes()), Some(name)).unwrap();
}

fn assert_there(client: &Client, name: &str) {
    let object = client.get(&name.into(), SOON).unwrap();
    assert_eq!(&object.view().unwrap()[..], name.as_bytes());
}

fn lives(members: &Members) -> Vec<(String, u64)> {
    members.nodes.iter().map(|node| (node.name.clone(), node.incarnation)).collect()
}

/// Waits until a name can be made: on a busy machine the lease may be late.
fn put_when_there_is_a_lease(client: &Client, name: &str) {
    let done = common::wait_for("a lease", || {
        match client.put(&Value::Bytes(name.as_bytes()), Some(name)) {
            Ok(_) | Err(Error::AlreadyExists { .. }) => Some(()),
            Err(_) => None,
        }
    });
    done.unwrap();
}

#[test]
fn three_nodes_find_each_other_by_etcd_alone_and_are_one_store() {
    let Some(etcd) = EtcdServers::start() else { return };
    // The first endpoint is dead: the next one is asked.
    let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let place = format!("etcd://{dead},127.0.0.1:{}/store", etcd.port());
    let mut nodes = start(3, &place, CALM_MS, &[]);
    let clients: Vec<_> = (0..3).map(|number| nodes.client(number)).collect();
    for (number, client) in clients.iter().enumerate() {
        let home = &nodes.names[(number + 1) % 3];
        put(&client.at(home).unwrap(), &format!("from {number}"));
    }
    for client in &clients {
        (0..3).for_each(|number| assert_there(client, &format!("from {number}")));
        assert!(matches!(
            client.put(&Value::Bytes(b"x"), Some("from 0")),
            Err(Error::AlreadyExists { .. })
        ));
    }
    let waiting = nodes.client(2);
    let waiting = std::thread::spawn(move || assert_there(&waiting, "late"));
    put(&clients[0], "late");
    waiting.join().unwrap();
    // One that goes in good order is gone at once, long before any lease is over.
    clients[2].shut_down_node().unwrap();
    assert!(nodes.daemons[2].wait_end().success());
    wait_for(&clients[0], |members| members.find("c").unwrap().reach == Reach::Left);
    put(&clients[1], "without c");
    assert_there(&clients[0], "without c");
}

#[test]
fn a_killed_node_is_lost_by_its_name_and_comes_back_as_a_new_life() {
    let Some(etcd) = EtcdServers::start() else { return };
    let mut nodes = start(3, &etcd.place("/kill"), SHORT_MS, &[]);
    let a = nodes.client(0);
    let far = a.at("c").unwrap();
    put(&far, "on c");
    let held = a.get(&"on c".into(), NOW).unwrap();
    let life = a.members().unwrap().find("c").unwrap().incarnation;
    // Back within its lease it is the same member.
    nodes.daemons[2].kill9();
    nodes.daemons[2].restart();
    nodes.settle(3);
    assert_there(&a, "on c");

    nodes.daemons[2].kill9();
    let members = wait_for(&a, |members| members.find("c").unwrap().reach == Reach::Lost);
    assert_eq!(members.nodes.len(), 3);
    match a.get(&"on c".into(), NOW) {
        Err(Error::NodeLost { node, .. }) => assert_eq!(node, "c"),
        other => panic!("{other:?}"),
    }
    // What is held stays good, and the others go on.
    assert_eq!(&held.view().unwrap()[..], b"on c");
    put_when_there_is_a_lease(&a, "still");
    assert_there(&nodes.client(1), "still");

    nodes.daemons[2].restart();
    let back = wait_for(&a, |members| {
        let c = members.find("c").unwrap();
        c.reach == Reach::Live && !c.fabric.is_empty()
    });
    assert!(back.find("c").unwrap().incarnation > life, "an excluded life came back");
    nodes.settle(3);
    assert_there(&a, "on c");
    put_when_there_is_a_lease(&far, "again");
    assert_there(&nodes.client(1), "again");
}

#[test]
fn a_node_that_sleeps_for_longer_than_its_lease_makes_no_names_until_it_is_back() {
    let Some(etcd) = EtcdServers::start() else { return };
    let nodes = start(2, &etcd.place("/sleep"), SHORT_MS, &[]);
    let (a, b) = (nodes.client(0), nodes.client(1));
    let life = a.members().unwrap().find("b").unwrap().incarnation;
    let pid = Pid::from_raw(nodes.daemons[1].pid() as i32).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    wait_for(&a, |members| members.find("b").unwrap().reach == Reach::Lost && members.has_lease);
    put_when_there_is_a_lease(&a, "theirs");
    // It finds this request when it wakes, before it could look at etcd.
    let racing = std::thread::spawn(move || {
        let result = b.put(&Value::Bytes(b"mine"), Some("theirs"));
        assert!(result.is_err(), "a name was made twice");
    });
    std::thread::sleep(Duration::from_millis(100));
    kill_process(pid, Signal::CONT).unwrap();
    racing.join().unwrap();
    let back = wait_for(&a, |members| members.find("b").unwrap().reach == Reach::Live);
    assert!(back.find("b").unwrap().incarnation > life);
    nodes.settle(2);
    assert_there(&nodes.client(1), "theirs");
}

/// Etcd stands still for longer than all leases. Nodes make no names meanwhile, all else goes on,
/// also across nodes; afterwards nobody has lost anything.
#[test]
fn while_etcd_sleeps_names_wait_and_all_else_goes_on() {
    let Some(etcd) = EtcdServers::start() else { return };
    let nodes = start(3, &etcd.place("/standstill"), SHORT_MS, &[]);
    let (a, b) = (nodes.client(0), nodes.client(1));
    put_when_there_is_a_lease(&a, "before");
    let before = a.members().unwrap();
    etcd.signal(0, Signal::STOP);
    for client in [&a, &b] {
        wait_for(client, |members| !members.has_lease);
    }
    let far = b.at("a").unwrap();
    for client in [&a, &far] {
        let id = client.put(&Value::Bytes(b"nameless"), None).unwrap();
        assert_eq!(&b.get(&id.into(), NOW).unwrap().view().unwrap()[..], b"nameless");
    }
    assert_there(&b, "before");
    assert!(a.put(&Value::Bytes(b"x"), Some("during")).is_err(), "a name without a lease");
    assert!(!b.contains(&"during".into()).unwrap());
    let during = a.members().unwrap();
    assert_eq!((during.epoch, lives(&during)), (before.epoch, lives(&before)));
    etcd.signal(0, Signal::CONT);
    nodes.settle(3);
    put_when_there_is_a_lease(&a, "after");
    assert_there(&b, "after");
    assert_eq!(lives(&a.members().unwrap()), lives(&before), "nobody was given up");
}

#[test]
fn an_etcd_that_is_killed_and_comes_back_with_its_data_costs_no_node_its_place() {
    let Some(mut etcd) = EtcdServers::start() else { return };
    let nodes = start(2, &etcd.place("/restart"), SHORT_MS, &[]);
    let (a, b) = (nodes.client(0), nodes.client(1));
    let before = a.members().unwrap();
    etcd.kill9(0);
    wait_for(&a, |members| !members.has_lease);
    etcd.restart(0);
    nodes.settle(2);
    put_when_there_is_a_lease(&b, "after");
    assert_there(&a, "after");
    assert_eq!(lives(&a.members().unwrap()), lives(&before));
}

/// The members of an etcd of three end and stand still, one after the other: the nodes go to the
/// next one, and nobody is lost.
#[test]
fn while_etcd_has_a_majority_nodes_go_on_by_the_members_that_are_left() {
    let Some(mut etcd) = EtcdServers::start_with(3, &[]) else { return };
    let nodes = start(3, &etcd.place("/three"), "4000", &[]);
    let (a, b) = (nodes.client(0), nodes.client(1));
    let before = a.members().unwrap();
    for member in 0..3 {
        match member {
            1 => etcd.signal(member, Signal::STOP),
            _ => etcd.kill9(member),
        }
        // Longer than a lease: what was known before is worth nothing any more.
        std::thread::sleep(Duration::from_secs(6));
        nodes.settle(3);
        let name = format!("without {member}");
        put_when_there_is_a_lease(&b, &name);
        assert_there(&a, &name);
        match member {
            1 => etcd.signal(member, Signal::CONT),
            _ => etcd.restart(member),
        }
        nodes.settle(3);
    }
    assert_eq!(lives(&a.members().unwrap()), lives(&before), "nobody was given up");
}

#[test]
fn clusters_below_two_prefixes_do_not_see_each_other() {
    let Some(etcd) = EtcdServers::start() else { return };
    // One prefix begins like the other one, and lies in it.
    let one = start(2, &etcd.place("/team"), CALM_MS, &[]);
    let other = start(2, &etcd.place("/team/x"), CALM_MS, &[]);
    put(&one.client(0), "same name");
    assert!(!other.client(1).contains(&"same name".into()).unwrap());
    put(&other.client(0), "same name");
    let member_lists = [one.client(0).members().unwrap(), other.client(0).members().unwrap()];
    assert!(member_lists.iter().all(|members| members.nodes.len() == 2));
    assert_ne!(member_lists[0].cluster, member_lists[1].cluster);
}

/// What a daemon says that cannot start.
fn refusal(words: &[&str]) -> String {
    let dir = tempfile::Builder::new().prefix("farrow-test-").tempdir_in("/dev/shm").unwrap();
    let child = Command::new(common::FARROWD)
        .arg("--socket")
        .arg(dir.path().join("n.sock"))
        .args(["--memory", "1MiB", "--name", "a", "--listen", "127.0.0.1:0", "--plaintext"])
        .args(words)
        .env("FARROW_MEMORY_DIR", dir.path())
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let ended = child.wait_with_output().unwrap();
    let text = String::from_utf8(ended.stderr).unwrap();
    assert!(!ended.status.success(), "{words:?}: {text}");
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|one| one.unwrap()).collect();
    assert!(left.iter().all(|one| !one.file_name().to_string_lossy().contains("control")));
    text
}

#[test]
fn an_etcd_that_is_not_there_or_not_to_be_used_is_an_error_at_the_start() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap();
    let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (place, words) in [
        (format!("etcd://{dead}"), "refused"),
        (format!("etcd://{silent}/x"), "no answer"),
        ("etcd://192.0.2.1:2379".to_owned(), "use etcds://"),
        ("http://127.0.0.1:1".to_owned(), "begins neither"),
        (format!("etcds://{dead}"), "etcd_ca"),
    ] {
        let text = refusal(&["--membership", &place]);
        assert!(text.contains(words), "{place}: {text}");
    }
    let text = refusal(&["--membership", "etcd://127.0.0.1:1", "--join", "127.0.0.1:2"]);
    assert!(text.contains("--join"), "{text}");
}

#[test]
fn a_user_of_etcd_needs_its_password() {
    let Some(etcd) = EtcdServers::start_with(1, &["--auth-token", "simple"]) else { return };
    let folder = etcd.folder();
    let [root, user] = [r#"{"name":"root","password":"r"}"#, r#"{"name":"n","password":"right"}"#];
    // {"name": "n", ...}: may do all below /mine, and nothing else.
    let [from, to] = ["L21pbmUv", "L21pbmUw"];
    let may =
        format!(r#"{{"name":"node","perm":{{"permType":2,"key":"{from}","range_end":"{to}"}}}}"#);
    etcd.post("/v3/auth/user/add", root);
    etcd.post("/v3/auth/role/add", r#"{"name":"root"}"#);
    etcd.post("/v3/auth/user/grant", r#"{"user":"root","role":"root"}"#);
    etcd.post("/v3/auth/user/add", user);
    etcd.post("/v3/auth/role/add", r#"{"name":"node"}"#);
    etcd.post("/v3/auth/role/grant", &may);
    etcd.post("/v3/auth/user/grant", r#"{"user":"n","role":"node"}"#);
    etcd.post("/v3/auth/enable", "{}");
    let password = |name: &str, text: &str, mode: u32| {
        use std::os::unix::fs::PermissionsExt;
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let right = password("right", "right\n", 0o600);
    let wrong = password("wrong", "wrong\n", 0o600);
    let open = password("open", "right\n", 0o644);
    let (mine, theirs) = (etcd.place("/mine"), etcd.place("/theirs"));
    for (place, file, words) in [
        (&mine, &wrong, "authentication failed"),
        (&mine, &open, "all users can use"),
        (&theirs, &right, "permission denied"),
    ] {
        let text =
            refusal(&["--membership", place, "--etcd-user", "n", "--etcd-password-file", file]);
        assert!(text.contains(words), "{text}");
    }
    let text = refusal(&["--membership", &mine]);
    assert!(text.contains("user name is empty"), "{text}");
    let user = ["--etcd-user", "n", "--etcd-password-file", &right];
    let nodes = start(2, &mine, CALM_MS, &user);
    put(&nodes.client(0), "mine");
    assert_there(&nodes.client(1), "mine");
}

/// A certificate and its key, in PEM files of these names.
fn issue(ca: &CertifiedIssuer<'_, KeyPair>, name: &str, dir: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, ca).unwrap();
    std::fs::write(dir.join(format!("{name}.pem")), certificate.pem()).unwrap();
    let path = dir.join(format!("{name}.key"));
    std::fs::write(&path, key.serialize_pem()).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn etcd_is_spoken_with_by_tls_and_each_side_shows_who_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = |name: &str| {
        let ca = CertifiedIssuer::self_signed(params.clone(), KeyPair::generate().unwrap());
        let ca = ca.unwrap();
        std::fs::write(dir.path().join(name), ca.pem()).unwrap();
        ca
    };
    let (own, _other) = (ca("ca.pem"), ca("other.pem"));
    issue(&own, "server", dir.path());
    issue(&own, "node", dir.path());
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let files = ["ca.pem", "server.pem", "server.key"].map(file);
    let [ca, certificate, key] = files.each_ref().map(String::as_str);
    let etcd = EtcdServers::start_with(
        1,
        &[
            "--cert-file",
            certificate,
            "--key-file",
            key,
            "--trusted-ca-file",
            ca,
            "--client-cert-auth",
        ],
    );
    let Some(etcd) = etcd else { return };
    let place = etcd.place("/tls");
    let (cert, node_key) = (file("node.pem"), file("node.key"));
    let shown = ["--etcd-ca", ca, "--etcd-cert", &cert, "--etcd-key", &node_key];
    let nodes = start(2, &place, CALM_MS, &shown);
    put(&nodes.client(0), "secret");
    assert_there(&nodes.client(1), "secret");
    // An etcd of another authority is none; nor does this one take a node without a certificate.
    let other = file("other.pem");
    let text = refusal(&["--membership", &place, "--etcd-ca", &other]);
    assert!(text.contains("invalid peer certificate"), "{text}");
    let text = refusal(&["--membership", &place, "--etcd-ca", ca]);
    assert!(text.contains("etcd at etcds://127.0.0.1"), "{text}");
}

/// A daemon that goes over from the one membership to the other one has a new life, and its
/// objects.
#[test]
fn a_node_may_change_from_the_one_membership_to_the_other() {
    let Some(etcd) = EtcdServers::start() else { return };
    let dir = tempfile::Builder::new().prefix("farrow-test-").tempdir_in("/dev/shm").unwrap();
    let socket = dir.path().join("n.sock");
    let place = etcd.place("/change");
    let mut last = 0;
    for words in [&[][..], &["--membership", &place], &["--membership", &place], &[]] {
        let mut child = Command::new(common::FARROWD)
            .arg("--socket")
            .arg(&socket)
            .args(["--memory", "8MiB", "--keep", "--name", "a", "--listen", "127.0.0.1:0"])
            .args(["--plaintext", "--lease-ms", SHORT_MS, "--no-prepare"])
            .args(words)
            .env("FARROW_MEMORY_DIR", dir.path())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let client = client_at(&socket);
        let members = wait_for(&client, |members| members.has_lease);
        let life = members.find("a").unwrap().incarnation;
        assert!(life > last, "{words:?}");
        last = life;
        put_when_there_is_a_lease(&client, "kept");
        assert_there(&client, "kept");
        client.shut_down_node().unwrap();
        assert!(child.wait().unwrap().success());
    }
}

/// A daemon follows another one while etcd is away: nothing waits for it.
#[test]
fn a_node_is_upgraded_with_its_life_also_while_etcd_is_away() {
    let Some(etcd) = EtcdServers::start() else { return };
    let mut nodes = start(2, &etcd.place("/upgrade"), SHORT_MS, &[]);
    let a = nodes.client(0);
    let before = a.members().unwrap();
    nodes.daemons[1].upgrade();
    nodes.settle(2);
    assert_eq!(lives(&a.members().unwrap()), lives(&before));
    etcd.signal(0, Signal::STOP);
    nodes.daemons[0].upgrade();
    let options =
        ConnectOptions { timeout: PATIENCE, ..ConnectOptions::at(&nodes.daemons[0].socket) };
    let again = Client::connect(&options).unwrap();
    again.put(&Value::Bytes(b"local"), None).unwrap();
    etcd.signal(0, Signal::CONT);
    nodes.settle(2);
    assert_eq!(lives(&a.members().unwrap()), lives(&before));
    drop::<Daemon>(nodes.daemons.remove(1));
}
