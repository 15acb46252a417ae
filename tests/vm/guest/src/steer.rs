//! The connection over which guest `a` steers guest `b`.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::Instant;

use crate::report::{Anything, PATIENCE, PAUSE, step, until};

const STEER_PORT: u16 = 7421;

/// Guest b: does what it is told.
pub(crate) fn obey<G>(
    mut guest: G,
    peer: IpAddr,
    done: impl Fn(&mut G, &str) -> Anything<String>,
) -> Anything {
    let begin = Instant::now();
    let place = SocketAddr::new(peer, STEER_PORT);
    let mut stream = loop {
        match TcpStream::connect_timeout(&place, PAUSE * 50) {
            Ok(stream) => break stream,
            Err(error) => until(begin, || format!("guest a at {place}: {error}"))?,
        }
    };
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(2 * PATIENCE))?;
    let lines = BufReader::new(stream.try_clone()?).lines();
    for line in lines {
        let line = line?;
        if line == "off" {
            stream.shutdown(Shutdown::Both)?;
            step("switched off");
            // At once, as a power cut: nothing is told to anybody.
            return Err(format!("{:?}", Command::new("/bin/poweroff").arg("-f").status()).into());
        }
        let answer = match done(&mut guest, &line) {
            Ok(said) => format!("ok {said}"),
            Err(error) => format!("error {error}"),
        };
        stream.write_all(format!("{}\n", answer.replace('\n', " ")).as_bytes())?;
    }
    Ok(())
}

/// The other guest, as the script sees it.
pub(crate) struct Steered {
    stream: TcpStream,
    answers: BufReader<TcpStream>,
}

impl Steered {
    pub(crate) fn accept(own: IpAddr) -> Anything<Self> {
        let listener = TcpListener::bind(SocketAddr::new(own, STEER_PORT))?;
        listener.set_nonblocking(true)?;
        let begin = Instant::now();
        let stream = loop {
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(error) => until(begin, || format!("guest b does not come: {error}"))?,
            }
        };
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        // What the other one waits for ends before this.
        stream.set_read_timeout(Some(2 * PATIENCE))?;
        Ok(Self { answers: BufReader::new(stream.try_clone()?), stream })
    }

    pub(crate) fn tell(&mut self, command: &str) -> Anything {
        Ok(self.stream.write_all(format!("{command}\n").as_bytes())?)
    }

    pub(crate) fn answer(&mut self) -> Anything<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        match line.trim_end_matches('\n').split_once(' ') {
            Some(("ok", said)) => Ok(said.to_owned()),
            _ => Err(format!("guest b: {}", line.trim_end()).into()),
        }
    }

    pub(crate) fn ask(&mut self, command: &str) -> Anything<String> {
        self.tell(command)?;
        self.answer().map_err(|error| format!("{command}: {error}").into())
    }
}
