//! What one call of the batches answers after the other: the numbers of requests, and what a batch takes.

use shuttle::sync::Arc;
use shuttle::thread;

use crate::batch::{Batches, Entry, Kind, NoReply, UnderWay};
use crate::check;

enum Numbers {}

impl Kind for Numbers {
    type Ask = usize;
    type Reply = ();
    type Left = ();
}

type Requests = Batches<Numbers, Numbers>;

/// Runs the only schedule that there is.
fn once(model: impl Fn() + Send + Sync + 'static) {
    shuttle::check_dfs(model, None);
}

fn entries(requests: &Requests, asks: impl IntoIterator<Item = usize>) -> Vec<Arc<Entry<Numbers>>> {
    let entry = |ask| Entry::new(ask, requests.callers());
    asks.into_iter().map(entry).collect()
}

fn started(under_way: UnderWay) -> u64 {
    match under_way {
        UnderWay::Start(number) => number,
        UnderWay::Other(number) => panic!("{number} is under way"),
    }
}

fn other(under_way: UnderWay) -> u64 {
    match under_way {
        UnderWay::Other(number) => number,
        UnderWay::Start(number) => panic!("{number} is started"),
    }
}

/// Takes a batch. Returns its requests of both kinds.
fn next(requests: &Requests, number: &mut u64, limit: usize) -> Option<[Vec<usize>; 2]> {
    let (first, second) = requests.next(number, limit)?;
    let asks = |taken: Vec<(_, usize)>| taken.into_iter().map(|(_, ask)| ask).collect();
    Some([asks(first), asks(second)])
}

#[test]
fn callers_that_come_between_two_batches_are_woken_together() {
    once(|| {
        let requests = Requests::new();
        let before = requests.callers();
        assert!(Arc::ptr_eq(&before, &requests.callers()));
        let mut number = started(requests.push_first(&entries(&requests, [1])));
        assert!(next(&requests, &mut number, 1).is_some());
        assert!(!Arc::ptr_eq(&before, &requests.callers()));
    });
}

#[test]
fn batch_takes_leases_first_and_no_more_than_its_limit() {
    once(|| {
        let requests = Requests::new();
        let mut number = started(requests.push_first(&entries(&requests, 1..=4)));
        assert_eq!(
            other(requests.push_second(&entries(&requests, 5..=7))),
            number
        );
        let batches = [
            [vec![], vec![5, 6]],
            [vec![1], vec![7]],
            [vec![2, 3], vec![]],
            [vec![4], vec![]],
        ];
        for batch in batches {
            assert_eq!(next(&requests, &mut number, 2), Some(batch));
        }
        assert_eq!(next(&requests, &mut number, 2), None);
        assert!(requests.begin_alone().is_some(), "nothing is under way");
    });
}

/// A caller that waits behind a batch that has gone since does not overtake the one that is under way.
#[test]
fn only_the_request_that_is_under_way_is_overtaken() {
    once(|| {
        let requests = Requests::new();
        let waiting = entries(&requests, [1, 2, 3]);
        let queued_at = started(requests.push_first(&waiting));
        assert_eq!(other(requests.overtake(queued_at)), queued_at, "not yet");
        let mut number = queued_at;
        assert!(next(&requests, &mut number, 1).is_some());
        let [sent, queued, _] = &waiting[..] else {
            unreachable!()
        };
        assert!(!sent.is_queued() && queued.is_queued());
        assert_eq!(other(requests.overtake(queued_at)), number);
        let mut overtaking = started(requests.overtake(number));
        assert_eq!(
            next(&requests, &mut number, 1),
            None,
            "the other one goes on"
        );
        let rest = next(&requests, &mut overtaking, 8);
        assert_eq!(rest, Some([vec![2, 3], vec![]]));
        assert_eq!(
            other(requests.overtake(overtaking)),
            overtaking,
            "none is left"
        );
    });
}

#[test]
fn wait_that_is_woken_is_no_time_out() {
    check(|| {
        let requests = Requests::new();
        let entry = Entry::<Numbers>::new(1, requests.callers());
        let unparked = Arc::clone(&entry);
        let unparks = thread::spawn(move || unparked.unpark());
        assert!(matches!(entry.wait(None), Err(NoReply::Woken)));
        unparks.join().unwrap();
    });
}
