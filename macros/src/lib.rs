//! The attribute `#[locked]` of `lockkeeper`, which re-exports it with the feature `macros`.

mod arguments;
mod expand;
mod time;

use proc_macro::TokenStream;

use arguments::Arguments;

/// Runs a function or method while a lock is held.
///
/// The function returns a `Result` with an error that implements `From<lockkeeper::Error>`. If the lock is not
/// acquired, the function's body does not run, and the function returns the error. It is `ErrorKind::TimedOut`
/// if another holder had the lock until the end of the wait.
///
/// The lock is released after the function's local variables and arguments are dropped. So a transaction that ends
/// in the function ends before the release. Only a `self` that is taken by value, and arguments that a pattern
/// destructures, are dropped later.
///
/// ```
/// use lockkeeper::{Error, LockKeeper, locked};
///
/// struct Seats {
///     keeper: LockKeeper,
/// }
///
/// impl Seats {
///     #[locked("seat:{id}", keeper = self.keeper, wait = "5s", guard = lock)]
///     fn book(&self, id: u32) -> Result<u64, Error> {
///         // begin a transaction, sell the seat, commit
///         lock.ensure_held()?;
///         Ok(lock.token().get())
///     }
/// }
///
/// let seats = Seats { keeper: lockkeeper::open("memory:")? };
/// assert!(seats.book(42)? > 0);
/// # Ok::<(), Error>(())
/// ```
///
/// # Arguments
/// The first one is the name of the lock, in the syntax of `format!`. It can use the function's arguments; an
/// unknown variable does not compile. Further values, such as `"seat:{}", seat.id`, follow it. The others, in
/// any order:
///
/// | argument | meaning |
/// |---|---|
/// | `keeper = self.keeper` | required: an expression for the `LockKeeper`, a reference to it, or an `Arc` of it |
/// | `wait = "5s"` | how long the function waits for the lock; `"forever"`; else the keeper's default |
/// | `ttl = "30s"` | the ttl of the renewed lease; else the keeper's default |
/// | `shared` | the lock is shared with other shared holders |
/// | `permits = 5` | up to five hold a permit of the name, in all programs together |
/// | `guard = lock` | the name by which the body sees the `&LockGuard`, for its token and `ensure_held` |
///
/// Times are a number and `ms`, `s`, `m` or `h`, or an expression of the type `Duration`.
///
/// With the attribute several times, the lock of the lowest one is acquired first.
///
/// An `async fn` is refused, since waiting for a lock blocks the thread.
///
/// The crate `lockkeeper` must be a dependency with that name: under another name
/// (`locks = { package = "lockkeeper", … }`), the function does not compile.
#[proc_macro_attribute]
pub fn locked(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let unchanged = item.clone();
    let function = expand::parse(item);
    let expanded = function.and_then(|function| {
        let arguments: Arguments = syn::parse(arguments)?;
        expand::expand(&arguments, function)
    });
    expanded.map_or_else(
        |error| {
            // The function as it is: its absence would be further errors.
            let mut tokens = TokenStream::from(error.to_compile_error());
            tokens.extend(unchanged);
            tokens
        },
        TokenStream::from,
    )
}
