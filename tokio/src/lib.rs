//! Locks of lockkeeper in programs with tokio.
//!
//! lockkeeper is for threads: its calls block. An [`AsyncKeeper`] makes them on tokio's threads for blocking work, and
//! returns an [`AsyncGuard`]. A future waits for its loss, and its drop waits for no server.
//!
//! ```
//! use lockkeeper_tokio::AsyncKeeper;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), lockkeeper::Error> {
//! // Opening talks to the store, so a program does it before it starts its runtime, or by `spawn_blocking`.
//! let keeper = AsyncKeeper::new(lockkeeper::open("memory:?wait=5s")?);
//!
//! let guard = keeper.lock("seat:42").await?; // if this future is dropped, the wait ends
//! tokio::select! {
//!     () = sell(guard.token().get()) => {}
//!     () = guard.lost() => eprintln!("the lock is lost: the sale is given up"),
//! }
//! guard.ensure_held()?; // before a step that must not happen without the lock
//! guard.release().await?;
//! # Ok(())
//! # }
//! # async fn sell(_token: u64) {}
//! ```
//!
//! # Blocking work
//! If the work under the lock blocks, as Diesel and rusqlite do, use [`AsyncKeeper::run_locked`]: one closure on one
//! thread locks, works and releases.
//!
//! # How many threads
//! Each acquisition occupies a thread for blocking work while it waits. Tokio has 512 of them
//! (`max_blocking_threads`), and further closures queue behind them. So bound the waits: by `wait` in the URL, or by a
//! `tokio::sync::Semaphore` with fewer permits than threads.

mod blocking;
mod guard;
mod keeper;

pub use guard::AsyncGuard;
pub use keeper::AsyncKeeper;
