//! The server as a separate process, which ends with its parent.

use crate::server::serve;
use std::io::{BufRead, BufReader, Error, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use tokio::net::TcpListener;

/// Limit for a server to print its address.
const START: Duration = Duration::from_secs(20);

/// A running server.
#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
    /// Its address.
    pub address: SocketAddr,
}

impl ServerProcess {
    /// Starts this program again as `serve`.
    ///
    /// # Errors
    /// The start failed, or the server printed nothing in time.
    pub fn start() -> std::io::Result<ServerProcess> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("serve")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let said = child.stdout.take();
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let read = said.map(|said| BufReader::new(said).read_line(&mut line));
            // The receiver may be gone.
            let _ = sender.send(read.map(|read| read.map(|_| line)));
        });
        let line = receiver.recv_timeout(START);
        let port = match line {
            Ok(Some(Ok(line))) => line.trim().parse::<u16>().map_err(Error::other),
            _ => Err(Error::other(format!("a server said nothing within {} s", START.as_secs()))),
        };
        let address = port.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        match address {
            Ok(address) => Ok(ServerProcess { child, address }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves on a port of loopback that it prints, until standard input ends.
///
/// # Errors
/// Those of listening.
pub fn serve_until_input_ends() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        println!("{}", listener.local_addr()?.port());
        std::io::stdout().flush()?;
        let (sender, ended) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            let _ = sender.send(());
        });
        tokio::select! {
            result = serve(listener) => result,
            _ = ended => Ok(()),
        }
    })
}
