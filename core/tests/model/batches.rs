//! Requests that travel together: callers that wait, that leave at any time, and batches that overtake a
//! request that hangs.

use std::collections::BTreeSet;

use shuttle::sync::{Arc, Mutex};
use shuttle::thread::{self, JoinHandle};

use crate::check;
use crate::travel::{QueuedRequest, RequestQueue, Stopped, Travel, wake_callers};

/// A request asks for the name of a caller of its own, or gives a grant back.
enum Requests {}

enum Request {
    Acquire(usize),
    Release(Grant),
}

impl Travel for Requests {
    type Request = Request;
    /// What was granted.
    type Answer = Option<Grant>;
    type Settlement = ();
}

/// A grant of the modelled store.
struct Grant(usize);

#[derive(Default)]
struct Store {
    held: Mutex<BTreeSet<usize>>,
}

impl Store {
    fn grant(&self, name: usize) -> Grant {
        assert!(self.held.lock().unwrap().insert(name), "granted twice");
        Grant(name)
    }

    fn release(&self, grant: &Grant) {
        assert!(self.held.lock().unwrap().remove(&grant.0), "released twice");
    }
}

struct World {
    batches: RequestQueue<Requests>,
    store: Store,
    senders: Mutex<Vec<JoinHandle<()>>>,
    /// The number of requests of each batch.
    sizes: Mutex<Vec<usize>>,
}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            batches: RequestQueue::new(),
            store: Store::default(),
            senders: Mutex::default(),
            sizes: Mutex::default(),
        })
    }

    fn start(self: &Arc<Self>, next: Option<u64>) {
        if let Some(number) = next {
            let world = Arc::clone(self);
            let sender = thread::spawn(move || world.send(number));
            self.senders.lock().unwrap().push(sender);
        }
    }

    /// Has what waits overtake what is under way, which takes too long.
    fn overtake(self: &Arc<Self>) {
        if let Some(number) = self.batches.waits_for() {
            thread::yield_now();
            self.start(self.batches.overtake(number));
        }
    }

    fn send(&self, mut number: u64) {
        while let Some(batch) = self.batches.next(&mut number, 2) {
            assert!(batch.len() <= 2);
            self.sizes.lock().unwrap().push(batch.len());
            let (entries, batch): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
            for (entry, request) in entries.iter().zip(batch) {
                if let Some((Some(grant), ())) = entry.answer(self.carry_out(request)) {
                    self.store.release(&grant);
                }
            }
            wake_callers(&entries);
        }
    }

    fn carry_out(&self, request: Request) -> Option<Grant> {
        match request {
            Request::Acquire(name) => Some(self.store.grant(name)),
            Request::Release(grant) => {
                self.store.release(&grant);
                None
            }
        }
    }

    /// Asks alone or in a batch, and waits for the grant.
    fn acquire(self: &Arc<Self>, name: usize) -> Grant {
        if let Some((number, _)) = self.batches.begin(None) {
            let grant = self.store.grant(name);
            self.start(self.batches.end(number));
            return grant;
        }
        let entry = self.push(Request::Acquire(name));
        wait(&entry).unwrap()
    }

    fn push(self: &Arc<Self>, request: Request) -> Arc<QueuedRequest<Requests>> {
        let entry = QueuedRequest::new(request, None, self.batches.callers());
        self.start(self.batches.push(std::slice::from_ref(&entry)));
        entry
    }

    /// Asks in a batch, and stops waiting at any time.
    fn give_up(self: &Arc<Self>, name: usize) -> Option<Grant> {
        let entry = self.push(Request::Acquire(name));
        thread::yield_now();
        match entry.stop() {
            Stopped::NotSent(_) => None,
            Stopped::Answered(grant) => grant,
            Stopped::Sent => entry.leave(()).and_then(|(grant, ())| grant),
        }
    }

    fn release(self: &Arc<Self>, grant: Grant) {
        let entry = self.push(Request::Release(grant));
        wait(&entry);
    }

    /// Releases in a batch, and stops waiting at any time: the keeper goes on with the release.
    fn leave_release(self: &Arc<Self>, grant: Grant) {
        let entry = self.push(Request::Release(grant));
        thread::yield_now();
        match entry.stop() {
            Stopped::NotSent(Request::Release(grant)) => self.drop_grant(grant),
            Stopped::NotSent(Request::Acquire(_)) => panic!("it is another request"),
            Stopped::Answered(answer) => assert!(answer.is_none()),
            Stopped::Sent => {
                entry.leave(());
            }
        }
    }

    /// Releases in a batch, and does not wait for the answer.
    fn drop_grant(self: &Arc<Self>, grant: Grant) {
        let entry = QueuedRequest::unattended(Request::Release(grant), ());
        self.start(self.batches.push(&[entry]));
    }

    fn assert_nothing_left(&self) {
        loop {
            let Some(sender) = self.senders.lock().unwrap().pop() else {
                break;
            };
            sender.join().unwrap();
        }
        assert!(self.store.held.lock().unwrap().is_empty());
        assert!(self.batches.begin(None).is_some(), "nothing is under way");
    }
}

fn wait(entry: &QueuedRequest<Requests>) -> Option<Grant> {
    loop {
        if let Ok(grant) = entry.wait(None) {
            return grant;
        }
    }
}

fn spawn(world: &Arc<World>, body: impl FnOnce(&Arc<World>) + Send + 'static) -> JoinHandle<()> {
    let world = Arc::clone(world);
    thread::spawn(move || body(&world))
}

fn spawn_pair(world: &Arc<World>, name: usize) -> JoinHandle<()> {
    spawn(world, move |world| {
        let grant = world.acquire(name);
        world.release(grant);
    })
}

fn join(threads: Vec<JoinHandle<()>>) {
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn each_request_is_sent_once_and_answered() {
    check(|| {
        let world = World::new();
        join((0..3).map(|name| spawn_pair(&world, name)).collect());
        world.assert_nothing_left();
    });
}

#[test]
fn release_that_no_caller_waits_for_is_sent() {
    check(|| {
        let world = World::new();
        let drops = |name| {
            spawn(&world, move |world| {
                let grant = world.acquire(name);
                world.drop_grant(grant);
            })
        };
        join((0..2).map(drops).chain([spawn_pair(&world, 2)]).collect());
        world.assert_nothing_left();
    });
}

/// What is under way may hang, and be overtaken at any time.
#[test]
fn release_whose_holder_stops_waiting_is_carried_out_once() {
    check(|| {
        let world = World::new();
        let leaves = |name| {
            spawn(&world, move |world| {
                let grant = world.acquire(name);
                world.leave_release(grant);
            })
        };
        let overtakes = spawn(&world, |world| (0..2).for_each(|_| world.overtake()));
        join((0..2).map(leaves).chain([overtakes]).collect());
        world.assert_nothing_left();
    });
}

#[test]
fn what_is_queued_goes_in_one_batch() {
    check(|| {
        let world = World::new();
        let (number, _) = world.batches.begin(None).unwrap();
        let push = |name| world.push(Request::Acquire(name));
        let entries: Vec<_> = (0..2).map(push).collect();
        world.start(world.batches.end(number));
        for entry in entries {
            world.store.release(&wait(&entry).unwrap());
        }
        assert_eq!(*world.sizes.lock().unwrap(), [2]);
        world.assert_nothing_left();
    });
}

/// The caller may have gone while its request was under way: then the grant is given back.
#[test]
fn grant_of_a_caller_that_has_gone_is_given_back() {
    check(|| {
        let world = World::new();
        let give_up = |name| {
            spawn(&world, move |world| {
                if let Some(grant) = world.give_up(name) {
                    world.store.release(&grant);
                }
            })
        };
        let waits = spawn(&world, |world| {
            let grant = world.acquire(2);
            world.store.release(&grant);
        });
        join((0..2).map(give_up).chain([waits]).collect());
        world.assert_nothing_left();
    });
}

/// Whatever is under way may hang, and be overtaken at any time: it ends without a trace.
#[test]
fn overtaken_request_does_no_harm() {
    check(|| {
        let world = World::new();
        let overtakes = spawn(&world, |world| (0..4).for_each(|_| world.overtake()));
        join(
            (0..2)
                .map(|name| spawn_pair(&world, name))
                .chain([overtakes])
                .collect(),
        );
        world.assert_nothing_left();
    });
}
