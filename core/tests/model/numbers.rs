//! What one call of the batches answers after the other: the numbers of requests, and what a batch takes.

use shuttle::sync::Arc;
use shuttle::thread;

use crate::check;
use crate::travel::{NoAnswer, QueuedRequest, RequestQueue, Travel};

enum Numbers {}

impl Travel for Numbers {
    type Request = usize;
    type Answer = ();
    type Settlement = ();
}

type Requests = RequestQueue<Numbers>;

type Entry = QueuedRequest<Numbers>;

/// Runs the only schedule that there is.
fn once(model: impl Fn() + Send + Sync + 'static) {
    shuttle::check_dfs(model, None);
}

fn entries(requests: &Requests, asks: impl IntoIterator<Item = usize>) -> Vec<Arc<Entry>> {
    let entry = |ask| Entry::new(ask, None, requests.callers());
    asks.into_iter().map(entry).collect()
}

/// Takes a batch.
fn next(requests: &Requests, number: &mut u64, limit: usize) -> Option<Vec<usize>> {
    let batch = requests.next(number, limit)?;
    Some(batch.into_iter().map(|(_, request)| request).collect())
}

/// Sends a release of this name that is not waited for.
fn send(requests: &Requests, name: u64) {
    let number = requests.begin_send(name).unwrap();
    let owed = Entry::unattended(0, ());
    assert_eq!(requests.end_send(number, Some(owed)), None);
}

fn for_name(requests: &Requests, request: usize, name: u64) -> Arc<Entry> {
    Entry::new(request, Some(name), requests.callers())
}

#[test]
fn callers_that_come_between_two_batches_are_woken_together() {
    once(|| {
        let requests = Requests::new();
        let before = requests.callers();
        assert!(Arc::ptr_eq(&before, &requests.callers()));
        let mut number = requests.push(&entries(&requests, [1])).unwrap();
        assert!(next(&requests, &mut number, 1).is_some());
        assert!(!Arc::ptr_eq(&before, &requests.callers()));
    });
}

#[test]
fn batch_takes_no_more_than_its_limit_in_the_order_of_the_requests() {
    once(|| {
        let requests = Requests::new();
        let mut number = requests.push(&entries(&requests, 1..=4)).unwrap();
        assert_eq!(requests.push(&entries(&requests, 5..=5)), None);
        for batch in [vec![1, 2], vec![3, 4], vec![5]] {
            assert_eq!(next(&requests, &mut number, 2), Some(batch));
        }
        assert_eq!(next(&requests, &mut number, 2), None);
        assert!(requests.begin(None).is_some(), "nothing is under way");
    });
}

/// The reply to the release is read first, also in front of requests for its name.
#[test]
fn owed_release_goes_first_with_what_begins_next() {
    once(|| {
        let requests = Requests::new();
        for name in [None, Some(7), Some(8)] {
            send(&requests, 7);
            let (number, owed) = requests.begin(name).unwrap();
            assert!(owed.is_some());
            assert_eq!(requests.settle(), None);
            assert_eq!(requests.end(number), None);
        }
        send(&requests, 7);
        let waiting = [for_name(&requests, 1, 7), for_name(&requests, 2, 8)];
        let mut number = requests.push(&waiting).unwrap();
        assert_eq!(next(&requests, &mut number, 2), Some(vec![0, 1]));
        assert_eq!(next(&requests, &mut number, 2), Some(vec![2]));
    });
}

#[test]
fn owed_release_is_collected_once_nothing_has_begun_since() {
    once(|| {
        let requests = Requests::new();
        assert_eq!(requests.waits_for(), None);
        send(&requests, 7);
        let seen = requests.waits_for().unwrap();
        assert_eq!(requests.overtake(seen + 1), None);
        let mut number = requests.overtake(seen).unwrap();
        assert!(requests.begin(None).is_none(), "a thread collects it");
        assert_eq!(next(&requests, &mut number, 8), Some(vec![0]));
        assert_eq!(next(&requests, &mut number, 8), None);
        assert!(!requests.is_settled());
        assert_eq!(requests.settle(), None);
        assert!(requests.is_settled());
    });
}

#[test]
fn requests_for_the_name_of_a_release_overtake_it_nowhere() {
    once(|| {
        let requests = Requests::new();
        send(&requests, 7);
        let (alone, owed) = requests.begin(None).unwrap();
        assert!(owed.is_some());
        let waiting = [for_name(&requests, 1, 7), for_name(&requests, 2, 8)];
        assert_eq!(requests.push(&waiting), None);
        // The request that collects the reply hangs.
        let mut number = requests.overtake(alone).unwrap();
        assert_eq!(next(&requests, &mut number, 8), Some(vec![2]));
        assert_eq!(next(&requests, &mut number, 8), None);
        assert!(requests.begin(Some(7)).is_none());
        assert!(requests.begin_send(9).is_none(), "one at a time");
        let (other_name, _) = requests.begin(Some(8)).unwrap();
        assert_eq!(requests.end(other_name), None);
        let mut number = requests.settle().unwrap();
        assert_eq!(next(&requests, &mut number, 8), Some(vec![1]));
    });
}

#[test]
fn requests_behind_a_release_can_be_answered_otherwise() {
    once(|| {
        let requests = Requests::new();
        send(&requests, 7);
        let (number, _) = requests.begin(None).unwrap();
        let waiting = [for_name(&requests, 1, 7), for_name(&requests, 2, 8)];
        assert_eq!(requests.push(&waiting), None);
        let held = requests.take_held();
        assert_eq!(held.iter().map(|(_, it)| *it).collect::<Vec<_>>(), [1]);
        let mut number = requests.end(number).unwrap();
        assert_eq!(next(&requests, &mut number, 8), Some(vec![2]));
    });
}

/// The thread that sends a release is held up until the queue has overtaken it.
#[test]
fn release_whose_sending_was_overtaken_is_owed_all_the_same() {
    once(|| {
        let requests = Requests::new();
        let sending = requests.begin_send(7).unwrap();
        assert_eq!(requests.push(&entries(&requests, [1])), None);
        let mut number = requests.overtake(sending).unwrap();
        assert_eq!(next(&requests, &mut number, 8), Some(vec![1]));
        let owed = Entry::unattended(0, ());
        assert_eq!(requests.end_send(sending, Some(owed)), None);
        assert_eq!(next(&requests, &mut number, 8), Some(vec![0]));
    });
}

/// A caller that waits behind a batch that has gone since does not overtake the one that is under way.
#[test]
fn only_the_request_that_is_under_way_is_overtaken() {
    once(|| {
        let requests = Requests::new();
        let waiting = entries(&requests, [1, 2, 3]);
        let queued_at = requests.push(&waiting).unwrap();
        assert_eq!(requests.overtake(queued_at), None, "not yet");
        let mut number = queued_at;
        assert!(next(&requests, &mut number, 1).is_some());
        let [sent, queued, _] = &waiting[..] else {
            unreachable!()
        };
        assert!(!sent.is_queued() && queued.is_queued());
        assert_eq!(requests.overtake(queued_at), None);
        let mut overtaking = requests.overtake(number).unwrap();
        assert_eq!(
            next(&requests, &mut number, 1),
            None,
            "the other one goes on"
        );
        let rest = next(&requests, &mut overtaking, 8);
        assert_eq!(rest, Some(vec![2, 3]));
        assert_eq!(requests.overtake(overtaking), None, "none is left");
    });
}

#[test]
fn wait_that_is_woken_is_no_time_out() {
    check(|| {
        let requests = Requests::new();
        let entry = Entry::new(1, None, requests.callers());
        let unparked = Arc::clone(&entry);
        let unparks = thread::spawn(move || unparked.unpark());
        assert!(matches!(entry.wait(None), Err(NoAnswer::Woken)));
        unparks.join().unwrap();
    });
}
