//! A booking service with axum. Run it with `scripts/examples axum`; it serves itself, and ends.

use std::collections::HashSet;
use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::post;
use lockkeeper::{ErrorKind, RunLocked};
use lockkeeper_tokio::AsyncKeeper;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[derive(Clone)]
struct Shop {
    keeper: AsyncKeeper,
    /// Stands for a database.
    sold: Arc<Mutex<HashSet<u32>>>,
}

impl Shop {
    fn sold(&self) -> MutexGuard<'_, HashSet<u32>> {
        self.sold.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_sold(&self, seat: u32) -> bool {
        self.sold().contains(&seat)
    }

    fn record_sale(&self, seat: u32) {
        self.sold().insert(seat);
    }
}

/// How long a payment takes: between the look at the seat and its sale. Without the lock, all customers pay.
const PAYMENT: Duration = Duration::from_millis(50);

/// Returns the status of a request that did not acquire its lock, or lost it.
fn refused(error: &lockkeeper::Error) -> StatusCode {
    match error.kind() {
        ErrorKind::TimedOut => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// The work blocks, as Diesel and rusqlite do: lock, work and release are on one thread.
async fn book(State(shop): State<Shop>, Path(seat): Path<u32>) -> StatusCode {
    let seller = shop.clone();
    let booked = shop.keeper.run_locked(format!("seat:{seat}"), move |lock| {
        if seller.is_sold(seat) {
            return Ok(StatusCode::CONFLICT);
        }
        thread::sleep(PAYMENT);
        lock.ensure_held()?;
        seller.record_sale(seat);
        Ok(StatusCode::CREATED)
    });
    let booked = booked.await.and_then(RunLocked::held).flatten();
    booked.unwrap_or_else(|error| refused(&error))
}

/// The work is async, and the lock is held meanwhile: the payment is given up when the lock is lost.
async fn book_with_payment(State(shop): State<Shop>, Path(seat): Path<u32>) -> StatusCode {
    let lock = match shop.keeper.lock(format!("seat:{seat}")).await {
        Ok(lock) => lock,
        Err(error) => return refused(&error),
    };
    if shop.is_sold(seat) {
        return StatusCode::CONFLICT;
    }
    tokio::select! {
        () = tokio::time::sleep(PAYMENT) => {}
        () = lock.lost() => {}
    }
    match lock.ensure_held() {
        Ok(()) => {
            shop.record_sale(seat);
            StatusCode::CREATED
        }
        Err(error) => refused(&error),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Opening talks to the store, so it blocks as well.
    let open = || lockkeeper::open("memory:?wait=5s");
    let shop = Shop {
        keeper: AsyncKeeper::new(tokio::task::spawn_blocking(open).await??),
        sold: Arc::default(),
    };
    let app = Router::new()
        .route("/seats/{seat}", post(book))
        .route("/seats/{seat}/paid", post(book_with_payment))
        .with_state(shop.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, app).await });

    // Five customers want each of two seats, and one gets it.
    for path in ["/seats/42", "/seats/43/paid"] {
        let requests = (0..5).map(|_| tokio::spawn(request(address, path)));
        let mut created = 0;
        for request in requests.collect::<Vec<_>>() {
            created += u32::from(request.await??.contains("201 Created"));
        }
        println!("{path}: {created} of 5 customers got it");
        assert_eq!(created, 1);
    }

    // A future that is dropped ends its wait, and the lock is not taken later.
    let held = shop.keeper.lock("seat:44").await?;
    let has_run = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&has_run);
    let waiting = shop.keeper.run_locked("seat:44", move |_lock| {
        flag.store(true, Ordering::Relaxed);
    });
    let ended = tokio::time::timeout(Duration::from_millis(50), waiting).await;
    assert!(ended.is_err(), "the lock is held");
    drop(held);
    // A wait that goes on would be served first.
    let done = shop.keeper.run_locked("seat:44", |_lock| ());
    done.await?.held()?;
    assert!(!has_run.load(Ordering::Relaxed), "the wait has gone on");
    println!("/seats/44: the wait of a request that was dropped has ended");
    Ok(())
}

/// Sends a request, and returns the answer as text.
async fn request(address: std::net::SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let head = format!("POST {path} HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
