//! Rule 13: requiring a missing capability, or a setting out of bounds, is an error.

use std::time::Duration;

use lockkeeper_core::{
    AcquireOptions, Capability, ErrorKind, LeasePolicy, LockKeeper, LockKeeperBuilder,
    MAX_HANDOVERS, Wait,
};

use crate::rig::{Outcome, Rig, build};

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

/// Neither a keeper nor an acquisition with such a setting sends a request.
pub(super) fn settings_out_of_bounds_are_errors(rig: &Rig<'_>) -> Outcome {
    let refused = |builder: LockKeeperBuilder, kind| {
        let error = builder.build().expect_err("the setting is out of bounds");
        assert_eq!(error.kind(), kind, "{error:?}");
    };
    let fixed = |ttl| LeasePolicy::Fixed { ttl };
    let short = rig.provider().capabilities().min_ttl() - Duration::from_nanos(1);
    refused(
        rig.builder().lease(fixed(Duration::ZERO)),
        ErrorKind::InvalidTtl,
    );
    refused(
        rig.builder().lease(fixed(Duration::MAX)),
        ErrorKind::InvalidTtl,
    );
    refused(rig.builder().lease(fixed(short)), ErrorKind::TtlTooShort);
    refused(
        rig.builder().wait(Wait::AtMost(Duration::MAX)),
        ErrorKind::InvalidWait,
    );
    refused(
        rig.builder().handover_max(MAX_HANDOVERS + 1),
        ErrorKind::InvalidValue,
    );

    let (builder, tap) = rig.tapped();
    let keeper = build(builder);
    for (options, kind) in [
        (
            AcquireOptions::new().lease(fixed(Duration::ZERO)),
            ErrorKind::InvalidTtl,
        ),
        (
            AcquireOptions::new().lease(fixed(Duration::MAX)),
            ErrorKind::InvalidTtl,
        ),
        (
            AcquireOptions::new().lease(fixed(short)),
            ErrorKind::TtlTooShort,
        ),
        (
            AcquireOptions::new().wait(Duration::MAX),
            ErrorKind::InvalidWait,
        ),
    ] {
        let error = keeper
            .acquire("a", &options)
            .expect_err("the setting is out of bounds");
        assert_eq!(error.kind(), kind, "{error:?}");
    }
    assert!(tap.owners().is_empty(), "a request reached the store");
    Ok(())
}
