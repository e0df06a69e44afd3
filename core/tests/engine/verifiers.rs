//! The keepers that a backend knows, and asks to verify their leases.

use lockkeeper_core::{LeaseVerifier, LeaseVerifiers};

use crate::scripted_store::ScriptedStore;
use crate::steps::eventually;

#[test]
fn backend_knows_the_keepers_that_live() {
    let store = ScriptedStore::new();
    let verifiers = LeaseVerifiers::default();
    assert!(verifiers.is_empty());
    let [first, second] = ["a", "b"].map(|name| store.keeper().lock(name).unwrap());
    let mut all = Vec::new();
    store.set(|state| all = state.verifiers.clone());
    all.iter().cloned().for_each(|keeper| verifiers.add(keeper));
    assert!(!verifiers.is_empty());
    verifiers.verify_all();
    store.wait_for("a", "renew", 1);
    store.wait_for("b", "renew", 1);

    drop(first);
    eventually("the first keeper has ended", || all[0].is_ended());
    assert!(!all[1].is_ended() && !verifiers.is_empty());
    assert_eq!([&all[0], &all[1]].map(LeaseVerifier::verify), [false, true]);
    verifiers.add(all[1].clone());
    let text = format!("{verifiers:?}");
    assert_eq!(text.matches("LeaseVerifier {").count(), 2, "{text}");
    drop(second);
    eventually("the second keeper has ended", || verifiers.is_empty());
}
