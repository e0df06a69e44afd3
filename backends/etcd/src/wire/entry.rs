//! The value of a request's key: whether it is granted, and the holder for people.

use std::time::{Duration, UNIX_EPOCH};

use lockkeeper_core::{AcquireRequest, Holder, LeaseId, Mode, host_name, process_label};
use serde_json::{Value, json};

/// The value of a key, as it is read.
#[derive(Debug)]
pub(crate) struct Entry(Value);

/// Returns the value of a request: one that waits, or one that is granted a slot. The epoch of a grant follows from
/// the revision at which the key is written, and is in the value if it was another one.
pub(crate) fn value(request: &AcquireRequest<'_>, granted: Option<(u32, Option<u64>)>) -> String {
    value_at(request, granted, 0)
}

/// Returns the value of a request that resumes a lease whose key was last written at the revision `resumed`; 0 if it does
/// not.
pub(crate) fn value_at(
    request: &AcquireRequest<'_>,
    granted: Option<(u32, Option<u64>)>,
    resumed: i64,
) -> String {
    let (owner, limit) = (request.owner(), request.mode().limit());
    let since = owner.since.duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut value = json!({
        "held": granted.is_some(),
        "shared": (request.mode() == Mode::Shared).then_some(true),
        "limit": limit,
        "slot": limit.and(granted).map(|(slot, _)| slot),
        "epoch": granted.and_then(|(_, epoch)| epoch),
        "owner": owner_text(request),
        "host": host_name(),
        "pid": owner.pid,
        "label": process_label(),
        "since": u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
    });
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|_, field| !field.is_null());
    }
    let value = value.to_string();
    match value.strip_prefix('{') {
        Some(fields) if resumed > 0 => format!("{}{fields}", start(resumed)),
        _ => value,
    }
}

/// Returns what the value of a lease begins with that was resumed. It differs from holder to holder, and conditions
/// compare it.
pub(crate) fn start(resumed: i64) -> String {
    format!("{{\"resumed\":{resumed},")
}

/// Returns the owner of a request as values and keys have it.
pub(crate) fn owner_text(request: &AcquireRequest<'_>) -> String {
    request.owner().lease_id().to_string()
}

impl Entry {
    /// Reads a value; one from another program has no fields.
    pub(crate) fn read(value: &str) -> Self {
        Self(serde_json::from_str(value).unwrap_or_default())
    }

    /// Returns whether this is the value of a request.
    pub(crate) fn is_of(&self, request: &AcquireRequest<'_>) -> bool {
        self.text("owner") == Some(owner_text(request))
    }

    fn number(&self, name: &str) -> Option<u32> {
        let number = self.0.get(name)?.as_u64()?;
        number.try_into().ok()
    }

    fn text(&self, name: &str) -> Option<String> {
        Some(self.0.get(name)?.as_str()?.to_owned())
    }

    fn is(&self, name: &str) -> bool {
        self.0.get(name).and_then(Value::as_bool) == Some(true)
    }

    /// Returns whether the request is granted. One that waits becomes so when it has seen that it is its turn.
    pub(crate) fn is_held(&self) -> bool {
        self.is("held")
    }

    pub(crate) fn mode(&self) -> Mode {
        match self.number("limit") {
            Some(limit) => Mode::Permit { limit },
            None if self.is("shared") => Mode::Shared,
            None => Mode::Exclusive,
        }
    }

    pub(crate) fn slot(&self) -> Option<u32> {
        self.number("slot")
    }

    /// Returns the revision before the lease was resumed; 0 if it was not.
    pub(crate) fn resumed(&self) -> i64 {
        self.0.get("resumed").and_then(Value::as_i64).unwrap_or(0)
    }

    /// Returns what identifies the lease.
    pub(crate) fn lease_id(&self) -> Option<LeaseId> {
        LeaseId::parse(self.0.get("owner")?.as_str()?)
    }

    pub(crate) fn epoch(&self) -> Option<u64> {
        self.0.get("epoch").and_then(Value::as_u64)
    }

    pub(crate) fn holder(&self) -> Holder {
        let since = self.0.get("since").and_then(Value::as_u64);
        let since = since.map(Duration::from_millis);
        Holder {
            host: self.text("host"),
            pid: self.number("pid"),
            label: self.text("label"),
            since: since.and_then(|since| UNIX_EPOCH.checked_add(since)),
            session: None,
        }
    }
}
