//! Connections that the peer closes, and the one thread that notices.

#![allow(clippy::unwrap_used, reason = "that is how a test fails")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::thread;
use std::time::Duration;

use lockkeeper_remote::{SocketWatch, WatchedSocket};
use rustix::net::sockopt::set_socket_linger;

/// A limit far longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(30);

/// A connection: the socket that is watched, and its peer.
fn connection(listener: &TcpListener) -> (Arc<TcpStream>, TcpStream) {
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (Arc::new(socket), listener.accept().unwrap().0)
}

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

fn watch(watch: &SocketWatch, socket: &Arc<TcpStream>) -> (WatchedSocket, Receiver<()>) {
    let (sender, ended) = channel();
    let watched = watch.watch(socket, move || sender.send(()).unwrap());
    (watched.unwrap(), ended)
}

#[test]
fn each_way_to_end_a_connection_is_noticed_once_and_for_it_alone() {
    let (set, listener) = (SocketWatch::new("watch"), listener());
    let all = [(); 4].map(|()| connection(&listener));
    let watched = all.each_ref().map(|(socket, _)| watch(&set, socket));
    let [
        (used, mut user),
        (_closed, closer),
        (_cut, cutter),
        (_kept, keeper),
    ] = all;
    // Data is not an end, whether it was read or not.
    let mut byte = [0];
    for _ in 0..100 {
        user.write_all(&byte).unwrap();
        used.as_ref().read_exact(&mut byte).unwrap();
    }
    user.write_all(&byte).unwrap();
    drop(closer);
    set_socket_linger(&cutter, Some(Duration::ZERO)).unwrap();
    drop(cutter);
    let [in_use, closed, cut, kept] = &watched;
    for (watched, ended) in [closed, cut] {
        ended.recv_timeout(LIMIT).unwrap();
        let once = ended.recv_timeout(LIMIT);
        assert_eq!(once, Err(RecvTimeoutError::Disconnected));
        assert!(watched.has_ended());
    }
    assert!(!in_use.0.has_ended() && !kept.0.has_ended());
    // There is still a byte to be read.
    drop(user);
    in_use.1.recv_timeout(LIMIT).unwrap();
    drop(keeper);
    kept.1.recv_timeout(LIMIT).unwrap();
}

#[test]
fn socket_that_is_taken_out_is_closed_at_once_and_not_reported() {
    let (set, listener) = (SocketWatch::new("watch"), listener());
    // Sooner or later the thread is asleep when a socket is taken out.
    for _ in 0..50 {
        let [(socket, mut peer), (kept, end)] = [(); 2].map(|()| connection(&listener));
        let (watched, removed) = watch(&set, &socket);
        let (_kept, ended) = watch(&set, &kept);
        thread::yield_now();
        drop((watched, socket));
        peer.set_read_timeout(Some(LIMIT)).unwrap();
        assert_eq!(peer.read(&mut [0]).unwrap(), 0);
        drop((peer, end));
        ended.recv_timeout(LIMIT).unwrap();
        assert_eq!(removed.try_recv(), Err(TryRecvError::Disconnected));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn thread_ends_with_the_set() {
    let is_running = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names = tasks.filter_map(|task| {
            let name = task.unwrap().path().join("comm");
            std::fs::read_to_string(name).ok()
        });
        names
            .into_iter()
            .any(|name| name.trim_end() == "short-lived")
    };
    let (set, listener) = (SocketWatch::new("short-lived"), listener());
    assert!(!is_running());
    let (socket, _peer) = connection(&listener);
    let (_watched, ended) = watch(&set, &socket);
    while !is_running() {}
    drop(set);
    while is_running() {}
    assert_eq!(ended.try_recv(), Err(TryRecvError::Empty));
}
