//! Every back end satisfies every contract of a fabric, with home and clients in one process and
//! with each in its own process.

mod shm_files {
    farrow_testkit::fabric_contracts!(farrow_testkit::fabric::SHM_FILES);
}

mod shm_files_in_processes {
    farrow_testkit::fabric_contracts!(farrow_testkit::fabric::SHM_FILES, in processes);
}

mod memfd {
    farrow_testkit::fabric_contracts!(farrow_testkit::fabric::MEMFD);
}

mod device {
    farrow_testkit::fabric_contracts!(farrow_testkit::fabric::DEVICE);
}

mod device_in_processes {
    farrow_testkit::fabric_contracts!(farrow_testkit::fabric::DEVICE, in processes);
}

mod device_node_local {
    farrow_testkit::fabric_contracts!(farrow_testkit::fabric::DEVICE_NODE_LOCAL);
}

mod device_node_local_in_processes {
    farrow_testkit::fabric_contracts!(farrow_testkit::fabric::DEVICE_NODE_LOCAL, in processes);
}

mod passed_memfd {
    farrow_testkit::fabric_contracts!(farrow_testkit::fabric::PASSED_MEMFD);
}

// Other processes can get a memory file only in this way.
mod passed_memfd_in_processes {
    farrow_testkit::fabric_contracts!(farrow_testkit::fabric::PASSED_MEMFD, in processes);
}

mod passed_device {
    farrow_testkit::fabric_contracts!(farrow_testkit::fabric::PASSED_DEVICE);
}

mod passed_device_in_processes {
    farrow_testkit::fabric_contracts!(farrow_testkit::fabric::PASSED_DEVICE, in processes);
}

mod incoherent_64 {
    farrow_testkit::fabric_contracts!(farrow_testkit::fabric::INCOHERENT_64);
}

mod incoherent_64_in_processes {
    farrow_testkit::fabric_contracts!(farrow_testkit::fabric::INCOHERENT_64, in processes);
}

mod incoherent_128 {
    farrow_testkit::fabric_contracts!(farrow_testkit::fabric::INCOHERENT_128);
}

mod incoherent_128_in_processes {
    farrow_testkit::fabric_contracts!(farrow_testkit::fabric::INCOHERENT_128, in processes);
}

/// The canary: a failure in another process is a failure here.
mod canary {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use farrow_testkit::fabric::world::Role::{Client, Home};
    use farrow_testkit::fabric::{ConformanceRegion, SHM_FILES};
    use farrow_testkit::{SHARED_DIR_PARENT, shared_dir};

    /// Environment variable of a process that is to be killed while it has a process of its own.
    const MIDDLE: &str = "FARROW_TEST_CONTRACT_MIDDLE";

    fn world(test: &str) -> ConformanceRegion {
        ConformanceRegion::in_processes(&SHM_FILES, &format!("crate::canary::{test}"))
    }

    #[test]
    #[should_panic(expected = "in the process of Client 1: seen there")]
    fn a_failure_there_is_a_failure_here() {
        let world = world("a_failure_there_is_a_failure_here");
        let [home, client] = world.parties([Home, Client]);
        home.act(|_| ());
        client.act(|_| -> () { panic!("seen there") });
    }

    #[test]
    #[should_panic(expected = "party 1 says nothing")]
    fn a_process_that_goes_is_a_failure() {
        let world = world("a_process_that_goes_is_a_failure");
        let [_home, client] = world.parties([Home, Client]);
        client.act(|_| -> () { std::process::exit(7) });
    }

    #[test]
    fn parties_are_in_processes_of_their_own() {
        let world = world("parties_are_in_processes_of_their_own");
        let parties = world.parties([Home, Client, Client]);
        let ids = parties.each_ref().map(|party| party.act(|_| u64::from(std::process::id())));
        assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2], "{ids:?}");
        world.finish();
    }

    /// A started process ends with the process that started it, even during an act.
    #[test]
    fn a_process_ends_with_the_first() {
        let name = "a_process_ends_with_the_first";
        if std::env::var_os(MIDDLE).is_some() {
            let world = world(name);
            let [client] = world.parties([Client]);
            let id = client.act(|_| u64::from(std::process::id()));
            println!("\nclient {id}");
            client.act(|_| -> () {
                loop {
                    std::thread::sleep(Duration::from_secs(1));
                }
            });
        }
        let folder = shared_dir();
        let mut middle = Command::new(std::env::current_exe().unwrap())
            .args([&format!("canary::{name}"), "--exact", "--nocapture", "--test-threads=1"])
            .env(MIDDLE, "yes")
            .env(SHARED_DIR_PARENT, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(middle.stdout.take().unwrap()).lines();
        let said = lines
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix("client ").map(|id| id.parse::<u32>().unwrap()));
        let client = said.expect("the number of a process");
        assert!(is_running(client));
        middle.kill().unwrap();
        middle.wait().unwrap();
        let until = Instant::now() + Duration::from_secs(30);
        while is_running(client) {
            assert!(Instant::now() < until, "{client} still runs");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether a process is running. A zombie is not.
    fn is_running(id: u32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    }
}
