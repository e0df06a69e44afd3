//! The attribute `#[locked]`.

#![allow(clippy::unwrap_used)]

use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use lockkeeper::{Config, ErrorKind, LockKeeper, Mode, ObservedLock, Observer, locked};

/// An application's error.
#[derive(Debug)]
enum ShopError {
    Lock(lockkeeper::Error),
    SoldOut,
}

impl From<lockkeeper::Error> for ShopError {
    fn from(error: lockkeeper::Error) -> Self {
        Self::Lock(error)
    }
}

impl fmt::Display for ShopError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// Records, when it is dropped, whether the name is still locked.
struct Probe<'a> {
    keeper: &'a LockKeeper,
    name: &'static str,
    was_locked: &'a RefCell<Vec<bool>>,
}

impl Drop for Probe<'_> {
    fn drop(&mut self) {
        let is_locked = self.keeper.try_lock(self.name).unwrap().is_none();
        self.was_locked.borrow_mut().push(is_locked);
    }
}

impl Probe<'_> {
    fn seats(&self) -> Vec<u32> {
        vec![1, 2]
    }
}

struct Shop {
    keeper: Arc<LockKeeper>,
}

impl Shop {
    fn open() -> Self {
        Self {
            keeper: Arc::new(lockkeeper::open("memory:").unwrap()),
        }
    }

    #[locked("seat:{id}", keeper = self.keeper, wait = "10ms", guard = lock)]
    fn book(&self, id: u32) -> Result<String, ShopError> {
        assert_eq!(lock.mode(), Mode::Exclusive);
        if id == 0 {
            return Err(ShopError::SoldOut);
        }
        Ok(lock.name().to_string())
    }

    fn is_locked(&self, name: &str) -> bool {
        self.keeper.try_lock(name).unwrap().is_none()
    }
}

#[test]
fn name_is_made_of_the_arguments_and_free_after_the_call() {
    let shop = Shop::open();
    assert_eq!(shop.book(42).unwrap(), "seat:42");
    assert!(!shop.is_locked("seat:42"));
    assert!(matches!(shop.book(0), Err(ShopError::SoldOut)));
    assert!(!shop.is_locked("seat:0"));
}

#[test]
fn busy_lock_is_an_error_of_the_function() {
    let shop = Shop::open();
    let _held = shop.keeper.lock("seat:42").unwrap();
    let ShopError::Lock(error) = shop.book(42).unwrap_err() else {
        unreachable!("the body did not run");
    };
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains("at the end of 10ms"), "{error}");
}

#[test]
fn lock_is_held_until_locals_arguments_and_the_last_expression_have_ended() {
    #[locked("a", keeper = keeper)]
    fn work<'a>(
        keeper: &'a LockKeeper,
        mut _taken: Probe<'a>,
        fails: bool,
    ) -> Result<usize, lockkeeper::Error> {
        let _local = copy(&_taken);
        if fails {
            let _ = keeper.lock("")?;
        }
        // The temporary lives until the end of the statement.
        Ok(copy(&_taken).seats().len())
    }
    fn copy<'a>(probe: &Probe<'a>) -> Probe<'a> {
        Probe {
            keeper: probe.keeper,
            name: probe.name,
            was_locked: probe.was_locked,
        }
    }
    let (keeper, was_locked) = (lockkeeper::open("memory:").unwrap(), RefCell::default());
    let probe = || Probe {
        keeper: &keeper,
        name: "a",
        was_locked: &was_locked,
    };
    assert_eq!(work(&keeper, probe(), false).unwrap(), 2);
    assert_eq!(was_locked.take(), [true; 3]);
    assert_eq!(
        work(&keeper, probe(), true).unwrap_err().kind(),
        ErrorKind::InvalidName
    );
    assert_eq!(was_locked.take(), [true; 2]);
    assert!(keeper.try_lock("a").unwrap().is_some());
}

#[test]
fn modes_are_those_of_the_attribute() {
    #[locked("{}:{what}", 1 + 1, keeper = &keeper, shared, guard = lock)]
    fn read(keeper: LockKeeper, what: &str) -> Result<(String, Mode), lockkeeper::Error> {
        assert!(keeper.try_lock_shared("2:prices")?.is_some());
        Ok((lock.name().to_string(), lock.mode()))
    }
    #[locked("reports", keeper = keeper, permits = 2, wait = Duration::ZERO, guard = lock)]
    fn report(keeper: &LockKeeper) -> Result<Mode, lockkeeper::Error> {
        assert!(keeper.semaphore("reports", 2)?.try_acquire()?.is_some());
        Ok(lock.mode())
    }
    let keeper = lockkeeper::open("memory:").unwrap();
    let read = read(keeper.clone(), "prices").unwrap();
    assert_eq!(read, ("2:prices".to_owned(), Mode::Shared));
    assert_eq!(report(&keeper).unwrap(), Mode::Permit { limit: 2 });
}

#[test]
fn ttl_is_that_of_the_attribute() {
    let keeper = lockkeeper::open("memory:?ttl=10s").unwrap();
    macro_rules! check {
        ($ttl:expr, $seconds:literal) => {{
            #[locked("a", keeper = keeper, ttl = $ttl, guard = lock)]
            fn remaining(keeper: &LockKeeper) -> Result<Duration, lockkeeper::Error> {
                Ok(lock.remaining())
            }
            let (ttl, remaining) = (Duration::from_secs($seconds), remaining(&keeper).unwrap());
            assert!(ttl / 2 < remaining && remaining <= ttl, "{remaining:?}");
        }};
    }
    check!("90000ms", 90);
    check!("270s", 270);
    check!("15m", 900);
    check!("1h", 3_600);
    check!(Duration::from_secs(9_000), 9_000);
}

/// Reports that a wait begins.
struct Waits(mpsc::Sender<()>);

impl Observer for Waits {
    fn contended(&self, _: &ObservedLock<'_>) {
        self.0.send(()).unwrap();
    }
}

#[test]
fn forever_is_no_wait_of_the_keeper() {
    #[locked("a", keeper = keeper, wait = "forever")]
    fn work(keeper: &LockKeeper) -> Result<(), lockkeeper::Error> {
        Ok(())
    }
    let (sender, waits) = mpsc::channel();
    let config = Config::from_url("memory:?wait=0s").unwrap();
    let keeper = lockkeeper::open_config(&config.observer(Arc::new(Waits(sender)))).unwrap();
    let _held = keeper.lock("a").unwrap();
    let ended = thread::scope(|scope| {
        let working = scope.spawn(|| work(&keeper));
        waits.recv().unwrap();
        keeper.close();
        working.join().unwrap()
    });
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Cancelled);
}

#[test]
fn body_is_coerced_to_the_type_of_the_function() {
    trait Report {
        fn pages(&self) -> usize;
    }
    impl Report for Vec<u32> {
        fn pages(&self) -> usize {
            self.len()
        }
    }
    #[locked("report", keeper = keeper)]
    fn boxed(keeper: &LockKeeper) -> Result<Box<dyn Report>, lockkeeper::Error> {
        Ok(Box::new(vec![1_u32, 2]))
    }
    #[locked("report", keeper = keeper)]
    fn sliced<'a>(keeper: &LockKeeper, all: &'a [u32; 1]) -> Result<&'a [u32], lockkeeper::Error> {
        Ok(all)
    }
    #[locked("report", keeper = keeper)]
    fn opaque(keeper: &LockKeeper) -> Result<impl Iterator<Item = u32>, lockkeeper::Error> {
        Ok([1, 2, 3].into_iter())
    }
    let keeper = lockkeeper::open("memory:").unwrap();
    assert_eq!(boxed(&keeper).unwrap().pages(), 2);
    assert_eq!(sliced(&keeper, &[1]).unwrap(), [1]);
    assert_eq!(opaque(&keeper).unwrap().sum::<u32>(), 6);
}

#[test]
fn mistakes_do_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/locked/ui/*.rs");
}

#[test]
fn attributes_in_the_body_and_of_arguments_stay() {
    #[locked("seat:{id}", keeper = keeper)]
    fn book(
        keeper: &LockKeeper,
        id: u32,
        #[cfg(any())] never: u32,
        #[cfg(not(any()))] always: u32,
    ) -> Result<u32, lockkeeper::Error> {
        //! Books a seat.
        #![allow(unused_assignments)]
        Ok(always)
    }
    let keeper = lockkeeper::open("memory:").unwrap();
    assert_eq!(book(&keeper, 1, 2).unwrap(), 2);
}

/// A warning here fails the build: users have such functions, and such lints.
#[deny(unreachable_code, unused_braces)]
mod lints {
    use super::*;

    impl Shop {
        #[locked("one expression", keeper = self.keeper)]
        #[rustfmt::skip]
        fn one_expression(&self) -> Result<u32, ShopError> { Ok(7) }

        #[locked("no end", keeper = self.keeper)]
        fn without_an_end(&self) -> Result<u32, ShopError> {
            loop {
                if self.keeper.try_lock("other")?.is_some() {
                    return Err(ShopError::SoldOut);
                }
            }
        }
    }

    #[test]
    fn function_with_one_expression_or_without_an_end_compiles_without_a_warning() {
        let shop = Shop::open();
        assert_eq!(shop.one_expression().unwrap(), 7);
        shop.without_an_end().unwrap_err();
    }
}
