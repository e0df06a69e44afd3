//! The proxy, in front of a small server that echoes every line.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "that is how a test fails"
)]

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lockkeeper_testkit::{Fault, Proxy};

/// A limit far longer than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(20);

/// How long a client waits before it counts as silent; a wrong reply would arrive sooner.
const SILENCE: Duration = Duration::from_millis(150);

/// Echoes each line, and counts the lines that it received.
struct Echo {
    addr: SocketAddr,
    lines: Arc<AtomicUsize>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    fn new() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        let lines = Arc::new(AtomicUsize::new(0));
        let over = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let (lines, over) = (Arc::clone(&lines), Arc::clone(&over));
            move || {
                for stream in listener.incoming() {
                    if over.load(Ordering::SeqCst) {
                        return;
                    }
                    let lines = Arc::clone(&lines);
                    thread::spawn(move || echo(&stream.unwrap(), &lines));
                }
            }
        });
        Self {
            addr,
            lines,
            over,
            thread: Some(thread),
        }
    }

    fn lines(&self) -> usize {
        self.lines.load(Ordering::SeqCst)
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.addr);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn echo(mut stream: &TcpStream, lines: &AtomicUsize) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    while matches!(reader.read_line(&mut line), Ok(read) if read > 0) {
        lines.fetch_add(1, Ordering::SeqCst);
        let _ = stream.write_all(line.as_bytes());
        line.clear();
    }
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn new(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        Self(BufReader::new(stream))
    }

    fn send(&mut self, line: &str) {
        self.0
            .get_mut()
            .write_all(format!("{line}\n").as_bytes())
            .unwrap();
    }

    fn receive(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    fn ask(&mut self, line: &str) -> String {
        self.send(line);
        self.receive().unwrap()
    }

    fn is_silent(&mut self) -> bool {
        self.0.get_ref().set_read_timeout(Some(SILENCE)).unwrap();
        let heard = self.0.fill_buf().map(<[u8]>::len);
        self.0.get_ref().set_read_timeout(Some(TIMEOUT)).unwrap();
        heard.is_err_and(|error| {
            matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
            )
        })
    }
}

#[test]
fn passes_and_counts() {
    let echo = Echo::new();
    let proxy = Proxy::new(echo.addr).unwrap();
    let mut one = Client::new(proxy.addr());
    let mut two = Client::new(proxy.addr());
    assert_eq!(one.ask("hello"), "hello");
    assert_eq!(two.ask("you"), "you");
    let counts = proxy.counts();
    assert_eq!(
        (
            counts.accepted,
            counts.open,
            counts.requests,
            counts.replies
        ),
        (2, 2, 2, 2)
    );
    assert_eq!((counts.request_bytes, counts.reply_bytes), (10, 10));
    drop(one);
    assert!(proxy.wait_for(TIMEOUT, |counts| counts.open == 1));
    assert_eq!(two.ask("still"), "still");
    assert_eq!(
        proxy.counts().cut,
        0,
        "a connection that the client closes is not cut"
    );
}

#[test]
fn dropped_request_does_not_reach_the_server() {
    let echo = Echo::new();
    let proxy = Proxy::new(echo.addr).unwrap();
    let mut client = Client::new(proxy.addr());
    proxy.set(Fault::DropRequests);
    client.send("lost");
    assert!(proxy.wait_for(TIMEOUT, |counts| counts.dropped_requests == 1));
    proxy.set(Fault::Pass);
    assert_eq!(client.ask("found"), "found");
    assert_eq!(echo.lines(), 1);
}

#[test]
fn dropped_reply_belongs_to_served_request() {
    let echo = Echo::new();
    let proxy = Proxy::new(echo.addr).unwrap();
    let mut client = Client::new(proxy.addr());
    proxy.set(Fault::DropReplies);
    client.send("lost");
    assert!(proxy.wait_for(TIMEOUT, |counts| counts.dropped_replies == 1));
    proxy.set(Fault::Pass);
    assert_eq!(client.ask("found"), "found");
    assert_eq!(echo.lines(), 2);
}

#[test]
fn rest_of_a_dropped_reply_does_not_pass() {
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let proxy = Proxy::new(server.local_addr().unwrap()).unwrap();
    let mut client = Client::new(proxy.addr());
    let (mut server, _) = server.accept().unwrap();
    proxy.set(Fault::DropReplies);
    server.write_all(b"first ").unwrap();
    assert!(proxy.wait_for(TIMEOUT, |counts| counts.dropped_replies == 1));
    proxy.set(Fault::Pass);
    server.write_all(b"second\n").unwrap();
    assert!(client.receive().map_or(true, |line| line.is_empty()));
    assert_eq!(proxy.counts().cut, 1);
}

#[test]
fn once_applies_to_one_request_with_the_needle() {
    let echo = Echo::new();
    let proxy = Proxy::new(echo.addr).unwrap();
    let mut other = Client::new(proxy.addr());
    let mut client = Client::new(proxy.addr());
    proxy.once("needle", Fault::DropReplies);
    assert_eq!(other.ask("hay"), "hay");
    client.send("a needle");
    assert!(proxy.wait_for(TIMEOUT, |counts| counts.dropped_replies == 1));
    assert_eq!(other.ask("a needle too"), "a needle too");
    assert_eq!(client.ask("a needle again"), "a needle again");
    proxy.once("", Fault::CutReplyAfter(0));
    proxy.set(Fault::Pass);
    assert_eq!(client.ask("taken back"), "taken back");
}

#[test]
fn once_dark_affects_one_connection_until_set() {
    let echo = Echo::new();
    let proxy = Proxy::new(echo.addr).unwrap();
    let mut other = Client::new(proxy.addr());
    let mut client = Client::new(proxy.addr());
    proxy.once("needle", Fault::Dark);
    client.send("a needle");
    assert!(proxy.wait_for(TIMEOUT, |counts| counts.held == 1));
    assert_eq!(other.ask("hay"), "hay");
    assert_eq!(echo.lines(), 1);
    proxy.set(Fault::Pass);
    assert_eq!(client.receive().unwrap(), "a needle");
}

#[test]
fn half_open_connection_passes_one_request_and_nothing_else_until_set() {
    let echo = Echo::new();
    let proxy = Proxy::new(echo.addr).unwrap();
    let mut client = Client::new(proxy.addr());
    proxy.once("needle", Fault::HalfOpen);
    client.send("a needle");
    assert!(proxy.wait_for(TIMEOUT, |counts| counts.dropped_replies == 1));
    client.send("late");
    assert!(client.is_silent());
    assert_eq!(echo.lines(), 1);
    proxy.set(Fault::Pass);
    assert_eq!(client.receive().unwrap(), "late");
}

#[test]
fn delays_in_both_directions() {
    let echo = Echo::new();
    let proxy = Proxy::new(echo.addr).unwrap();
    let mut client = Client::new(proxy.addr());
    let delay = Duration::from_millis(200);
    for (fault, served) in [
        (Fault::DelayRequests(delay), 0),
        (Fault::DelayReplies(delay), 2),
    ] {
        proxy.set(fault);
        let held = proxy.counts().held;
        let start = Instant::now();
        client.send("slow");
        assert!(proxy.wait_for(TIMEOUT, |counts| counts.held > held));
        assert!(echo.lines() == served || start.elapsed() >= delay);
        assert_eq!(client.receive().unwrap(), "slow");
        // A lower bound: no busy machine makes it shorter.
        assert!(start.elapsed() >= delay, "{fault:?}");
    }
}

#[test]
fn cut_mid_reply() {
    let echo = Echo::new();
    let proxy = Proxy::new(echo.addr).unwrap();
    let mut client = Client::new(proxy.addr());
    proxy.set(Fault::CutReplyAfter(8));
    assert_eq!(client.ask("four"), "four");
    client.send("four more");
    let mut rest = String::new();
    let _ = client.0.read_to_string(&mut rest);
    assert_eq!(rest, "fou", "5 of the 8 bytes went before");
    assert_eq!(proxy.counts().cut, 1);
    proxy.set(Fault::Pass);
    assert_eq!(Client::new(proxy.addr()).ask("again"), "again");
}

#[test]
fn drips_until_the_fault_is_over() {
    let echo = Echo::new();
    let proxy = Proxy::new(echo.addr).unwrap();
    let mut client = Client::new(proxy.addr());
    let interval = Duration::from_millis(20);
    proxy.set(Fault::DripReplies(interval));
    let start = Instant::now();
    assert_eq!(client.ask("12345"), "12345");
    // A lower bound: no busy machine makes it shorter.
    assert!(start.elapsed() >= interval * 5);
    assert_eq!(proxy.counts().held, 1);
    proxy.set(Fault::DripReplies(Duration::from_secs(3600)));
    client.send("rest");
    let mut first = [0];
    client.0.read_exact(&mut first).unwrap();
    assert!(client.is_silent());
    proxy.set(Fault::Pass);
    assert_eq!(
        (&first, client.receive().unwrap()),
        (b"r", "est".to_owned())
    );
    assert_eq!(client.ask("again"), "again");
}

#[test]
fn silent_mid_reply_until_the_fault_is_over() {
    let echo = Echo::new();
    let proxy = Proxy::new(echo.addr).unwrap();
    let mut client = Client::new(proxy.addr());
    let mut other = Client::new(proxy.addr());
    proxy.once("needle", Fault::SilentReplyAfter(3));
    client.send("a needle");
    assert!(proxy.wait_for(TIMEOUT, |counts| counts.held == 1));
    let mut first = [0; 3];
    client.0.read_exact(&mut first).unwrap();
    assert!(client.is_silent());
    assert_eq!(other.ask("hay"), "hay");
    proxy.set(Fault::Pass);
    let rest = client.receive().unwrap();
    assert_eq!((&first, rest.as_str()), (b"a n", "eedle"));
    proxy.set(Fault::SilentReplyAfter(0));
    client.send("more");
    assert!(proxy.wait_for(TIMEOUT, |counts| counts.held == 2));
    assert!(client.is_silent());
    proxy.cut();
    assert!(client.receive().map_or(true, |line| line.is_empty()));
}

#[test]
fn dark_holds_messages_until_it_ends() {
    let echo = Echo::new();
    let proxy = Proxy::new(echo.addr).unwrap();
    let mut old = Client::new(proxy.addr());
    assert_eq!(old.ask("light"), "light");
    proxy.set(Fault::Dark);
    old.send("one");
    let mut new = Client::new(proxy.addr());
    new.send("two");
    assert!(proxy.wait_for(TIMEOUT, |counts| counts.held == 1 && counts.accepted == 2));
    assert!(old.is_silent() && new.is_silent());
    assert_eq!(echo.lines(), 1);
    proxy.set(Fault::Pass);
    assert_eq!(old.receive().unwrap(), "one");
    assert_eq!(new.receive().unwrap(), "two");
}

#[test]
fn refuses_like_port_without_server() {
    let echo = Echo::new();
    let proxy = Proxy::new(echo.addr).unwrap();
    let mut client = Client::new(proxy.addr());
    assert_eq!(client.ask("here"), "here");
    for _ in 0..10 {
        proxy.refuse();
        assert!(
            client.receive().map_or(true, |line| line.is_empty()),
            "open connections are cut"
        );
        let refused = TcpStream::connect(proxy.addr()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        proxy.accept().unwrap();
        client = Client::new(proxy.addr());
        assert_eq!(client.ask("back"), "back");
    }
}

#[test]
fn leads_to_another_server_after_fail_over() {
    let (one, two) = (Echo::new(), Echo::new());
    let proxy = Proxy::new(one.addr).unwrap();
    let mut client = Client::new(proxy.addr());
    assert_eq!(client.ask("one"), "one");
    proxy.lead_to(two.addr);
    proxy.cut();
    assert!(client.receive().map_or(true, |line| line.is_empty()));
    assert_eq!(Client::new(proxy.addr()).ask("two"), "two");
    assert_eq!((one.lines(), two.lines()), (1, 1));
}

#[test]
fn missing_target_closes_the_connection() {
    let gone = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .unwrap()
        .local_addr()
        .unwrap();
    let proxy = Proxy::new(gone).unwrap();
    let mut client = Client::new(proxy.addr());
    assert!(client.receive().map_or(true, |line| line.is_empty()));
}

#[test]
fn drop_ends_during_every_fault() {
    for fault in [
        Fault::Pass,
        Fault::Dark,
        Fault::DelayReplies(Duration::from_secs(3600)),
        Fault::DropReplies,
        Fault::DripReplies(Duration::from_secs(3600)),
        Fault::SilentReplyAfter(1),
    ] {
        let echo = Echo::new();
        let proxy = Proxy::new(echo.addr).unwrap();
        proxy.set(fault);
        let mut clients: Vec<Client> = (0..20).map(|_| Client::new(proxy.addr())).collect();
        for client in &mut clients {
            client.send("and then");
        }
        assert!(proxy.wait_for(TIMEOUT, |counts| counts.accepted == 20));
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            drop(proxy);
            let _ = sender.send(());
        });
        receiver.recv_timeout(TIMEOUT).expect("the drop returns");
        for client in &mut clients {
            let mut rest = Vec::new();
            let _ = client.0.read_to_end(&mut rest);
        }
    }
    let echo = Echo::new();
    let proxy = Proxy::new(echo.addr).unwrap();
    proxy.refuse();
    drop(proxy);
}
