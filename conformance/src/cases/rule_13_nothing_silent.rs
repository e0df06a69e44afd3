//! Rule 13: requiring a missing capability is an error.

use lockkeeper_core::{Capability, ErrorKind, LockKeeper};

use crate::rig::{Outcome, Rig};

pub(super) fn missing_required_capability_is_an_error(rig: &Rig<'_>) -> Outcome {
    let provider = rig.provider();
    for capability in Capability::ALL {
        let built = LockKeeper::builder(provider.clone())
            .require(capability)
            .build();
        if provider.capabilities().has(capability) {
            built.expect("a capability that the store declares can be required");
        } else {
            let error = built.expect_err("the store does not declare the capability");
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
            let named = error.to_string().contains(capability.as_str());
            assert!(named, "{error} does not name {capability}");
        }
    }
    Ok(())
}
