//! What operators ask: who holds what, forced releases, and examination.

mod examine;
mod held;
