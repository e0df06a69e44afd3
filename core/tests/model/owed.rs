//! Releases that are sent and not waited for: their reply is late or lost, their name is wanted again at once, and the
//! keeper ends meanwhile.

use std::collections::BTreeSet;

use shuttle::sync::{Arc, Mutex};
use shuttle::thread::{self, JoinHandle};

use crate::check;
use crate::travel::{QueuedRequest, RequestQueue, Taken, Travel, wake_callers};

enum Requests {}

enum Request {
    Acquire(u64),
    /// It was written into this connection, and its reply is to be read.
    Sent(u64),
    /// It is asked again, after a lost reply.
    Release(u64),
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Answer {
    Granted,
    Released,
    Lost,
}

impl Travel for Requests {
    type Request = Request;
    type Answer = Answer;
    /// The name of a release.
    type Settlement = u64;
}

/// What happens to releases that are sent.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    /// The server gets them when their reply is read.
    Late,
    /// The server never gets them.
    Lost,
    /// The server gets them, and the reply is lost.
    ReplyLost,
}

struct World {
    requests: RequestQueue<Requests>,
    held: Mutex<BTreeSet<u64>>,
    fate: Fate,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The ends of releases.
    ends: Mutex<usize>,
}

impl World {
    fn new(fate: Fate) -> Arc<Self> {
        Arc::new(Self {
            requests: RequestQueue::new(),
            held: Mutex::default(),
            fate,
            threads: Mutex::default(),
            ends: Mutex::new(0),
        })
    }

    fn spawn(self: &Arc<Self>, body: impl FnOnce(&Arc<Self>) + Send + 'static) {
        let world = Arc::clone(self);
        let thread = thread::spawn(move || body(&world));
        self.threads.lock().unwrap().push(thread);
    }

    fn start(self: &Arc<Self>, next: Option<u64>) {
        if let Some(number) = next {
            self.spawn(move |world| world.send(number));
        }
    }

    fn carry_out(&self, request: &Request) -> Answer {
        match *request {
            Request::Acquire(name) => {
                let is_free = self.held.lock().unwrap().insert(name);
                assert!(is_free, "it was asked for in front of its release");
                Answer::Granted
            }
            Request::Sent(name) => {
                if self.fate != Fate::Lost {
                    self.held.lock().unwrap().remove(&name);
                }
                match self.fate {
                    Fate::Late => Answer::Released,
                    Fate::Lost | Fate::ReplyLost => Answer::Lost,
                }
            }
            Request::Release(name) => {
                self.held.lock().unwrap().remove(&name);
                Answer::Released
            }
        }
    }

    fn send(self: &Arc<Self>, mut number: u64) {
        while let Some(batch) = self.requests.next(&mut number, 8) {
            self.deliver(batch);
        }
    }

    /// Carries a batch out, on one connection: behind a reply that is lost nothing gets through.
    fn deliver(self: &Arc<Self>, batch: Vec<Taken<Requests>>) {
        let (entries, batch): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
        let mut is_cut = false;
        let mut settled = Vec::new();
        for (entry, request) in entries.iter().zip(&batch) {
            let answer = match is_cut {
                true => Answer::Lost,
                false => self.carry_out(request),
            };
            is_cut |= answer == Answer::Lost;
            settled.extend(entry.answer(answer));
        }
        wake_callers(&entries);
        for (answer, name) in settled {
            self.settle(answer, name);
        }
    }

    fn settle(self: &Arc<Self>, answer: Answer, name: u64) {
        match answer {
            Answer::Lost => self.spawn(move |world| {
                // The engine does so while the store does not answer.
                for (entry, _) in world.requests.take_held() {
                    assert!(entry.answer(Answer::Lost).is_none());
                    wake_callers(&[entry]);
                }
                world.carry_out(&Request::Release(name));
                world.end_release();
            }),
            _ => self.end_release(),
        }
    }

    fn end_release(self: &Arc<Self>) {
        self.start(self.requests.settle());
        *self.ends.lock().unwrap() += 1;
    }

    /// Acquires a name, alone or in a batch.
    fn acquire(self: &Arc<Self>, name: u64) {
        while self.attempt(name) == Answer::Lost {
            thread::yield_now();
        }
    }

    fn attempt(self: &Arc<Self>, name: u64) -> Answer {
        let request = Request::Acquire(name);
        let Some((number, owed)) = self.requests.begin(Some(name)) else {
            let entry = QueuedRequest::new(request, Some(name), self.requests.callers());
            self.start(self.requests.push(std::slice::from_ref(&entry)));
            loop {
                if let Ok(answer) = entry.wait(None) {
                    return answer;
                }
            }
        };
        let mut answer = None;
        let mut collected = None;
        if let Some((owed, release)) = owed {
            let reply = self.carry_out(&release);
            answer = (reply == Answer::Lost).then_some(Answer::Lost);
            collected = owed.answer(reply);
        }
        let answer = answer.unwrap_or_else(|| self.carry_out(&request));
        self.start(self.requests.end(number));
        if let Some((reply, name)) = collected {
            self.settle(reply, name);
        }
        answer
    }

    /// Sends the release of a name if nothing is under way, or queues it.
    fn drop_guard(self: &Arc<Self>, name: u64) {
        match self.requests.begin_send(name) {
            Some(number) => {
                let owed = QueuedRequest::unattended(Request::Sent(name), name);
                self.start(self.requests.end_send(number, Some(owed)));
            }
            None => {
                // The queue of names keeps it meanwhile.
                self.held.lock().unwrap().remove(&name);
                *self.ends.lock().unwrap() += 1;
            }
        }
    }

    fn pair(self: &Arc<Self>, name: u64) {
        self.acquire(name);
        self.drop_guard(name);
    }

    /// What the keeper's timer does, and its end.
    fn collect(self: &Arc<Self>) {
        if let Some(number) = self.requests.waits_for() {
            self.start(self.requests.overtake(number));
        }
    }

    fn join(&self) {
        loop {
            let Some(thread) = self.threads.lock().unwrap().pop() else {
                break;
            };
            thread.join().unwrap();
        }
    }

    fn assert_nothing_left(self: &Arc<Self>, drops: usize) {
        self.join();
        self.collect();
        self.join();
        assert!(self.requests.is_settled());
        assert!(self.held.lock().unwrap().is_empty(), "it is held");
        assert_eq!(*self.ends.lock().unwrap(), drops);
        assert!(
            self.requests.begin(None).is_some(),
            "something is under way"
        );
    }
}

/// Checks a model with each fate of its releases, and that all of them have ended.
fn check_fates(drops: usize, model: fn(&Arc<World>)) {
    for fate in [Fate::Late, Fate::Lost, Fate::ReplyLost] {
        check(move || {
            let world = World::new(fate);
            model(&world);
            world.assert_nothing_left(drops);
        });
    }
}

#[test]
fn name_that_is_wanted_at_once_is_asked_for_behind_its_release() {
    check_fates(2, |world| {
        for _ in 0..2 {
            world.pair(1);
        }
    });
}

#[test]
fn others_take_the_reply_along() {
    check_fates(3, |world| {
        world.pair(1);
        world.spawn(|world| world.pair(2));
        world.spawn(|world| world.pair(1));
    });
}

/// What collects the reply may hang, and be overtaken at any time.
#[test]
fn request_for_the_name_does_not_overtake_what_collects_the_reply() {
    check_fates(3, |world| {
        world.pair(1);
        world.spawn(|world| world.pair(2));
        world.spawn(|world| world.pair(1));
        world.spawn(|world| (0..3).for_each(|_| world.collect()));
    });
}

#[test]
fn keeper_collects_what_is_owed_at_its_end() {
    check_fates(1, |world| {
        world.spawn(|world| world.pair(1));
        world.spawn(World::collect);
    });
}
