//! The parts of a store, each with batches and outages of its own: a part that hangs delays no other.

use std::iter;

use crate::contract::provider::AcquireRequest;

use super::Engine;
use super::group::Requests;
use super::health::Health;

/// What the engine has for one part of the store.
pub(super) struct Part {
    /// What travels together.
    pub(super) requests: Requests,
    pub(super) health: Health,
}

impl Part {
    fn new() -> Self {
        Self {
            requests: Requests::new(),
            health: Health::new(),
        }
    }
}

/// All parts of the store; most stores have one.
pub(super) struct Parts {
    first: Part,
    others: Vec<Part>,
}

impl Parts {
    pub(super) fn new(count: usize) -> Self {
        Self {
            first: Part::new(),
            others: iter::repeat_with(Part::new).take(count - 1).collect(),
        }
    }

    /// Returns the part with this number, as [`Engine::part_of`] returns it.
    #[inline(always)] // As what it is called by: see `release.rs`.
    pub(super) fn get(&self, number: usize) -> &Part {
        let other = number.checked_sub(1).and_then(|at| self.others.get(at));
        other.unwrap_or(&self.first)
    }

    /// Returns all parts, in the order of their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Part> {
        iter::once(&self.first).chain(&self.others)
    }
}

impl Engine {
    /// Returns the number of the part that keeps the name of a request.
    #[inline(always)]
    pub(super) fn part_of(&self, request: &AcquireRequest<'_>) -> usize {
        match self.capabilities.parts() {
            1 => 0,
            parts => self.provider.part(request) % parts,
        }
    }
}
