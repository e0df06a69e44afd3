//! The permits of a semaphore, as named locks.
//!
//! A permit is two names of one session: its slot, which excludes other permits, and its lease, which is the
//! slot with the limit. A session takes them while it holds the semaphore's name, so only one session at a time
//! looks for a free slot and compares limits. Sessions that wait do so for the semaphore's bell in the server, first
//! come, first served. The first of them holds the bell while all slots are in use, and pauses: a session that releases a
//! permit finds its number there, and ends its pause (`KILL QUERY`).
//!
//! While the bell is held, an attempt takes nothing and waits for nothing: it would pass those that wait, and keep other
//! leases of its session from being released.

use lockkeeper_remote::sessions::SessionName;

use crate::names::EncodedName;

/// The largest limit: each attempt asks about so many slots, since a permit of another limit may be in any.
pub(crate) const MAX_PERMITS: u32 = 32;

/// The names of a semaphore of a limit.
#[derive(Clone, Debug)]
pub(crate) struct Permits {
    pub(crate) gate: EncodedName,
    pub(crate) limit: u32,
}

/// What an attempt found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// A free slot, which it took.
    Taken(u32),
    /// As many permits are live as the limit allows.
    None,
    /// A permit of another limit is live, or another session waits first: the limits are to be compared.
    Unknown,
}

/// A column's value for [`Slot::Unknown`].
const UNKNOWN: u64 = 1_000;

/// A statement with a `?` for each name.
#[derive(Debug, Default)]
pub(crate) struct Template {
    pub(crate) sql: String,
    pub(crate) names: Vec<EncodedName>,
}

impl Template {
    pub(crate) fn add(&mut self, sql: &str) -> &mut Self {
        self.sql.push_str(sql);
        self
    }

    pub(crate) fn name(&mut self, name: &EncodedName) -> &mut Self {
        self.names.push(name.clone());
        self.add("?")
    }

    /// Returns the statement with the names pasted.
    pub(crate) fn pasted(&self) -> String {
        let mut parts = self.sql.split('?');
        let mut sql = parts.next().unwrap_or_default().to_owned();
        for (name, part) in self.names.iter().zip(parts) {
            sql.extend(["'", name, "'", part]);
        }
        sql
    }
}

impl Permits {
    /// Returns the semaphore of which this is the lease of a permit, with the slot.
    pub(crate) fn of_lease(lease: &EncodedName) -> Option<(Self, u32)> {
        let (gate, rest) = lease.semaphore_part()?;
        let (slot, limit) = rest.split_once('/')?;
        let (gate, limit) = (EncodedName::parse(gate)?, limit.parse().ok()?);
        Some((Self { gate, limit }, slot.parse().ok()?))
    }

    /// Returns the names that a session releases with a lock or a permit.
    pub(crate) fn names_of(held: &EncodedName) -> Vec<EncodedName> {
        match Self::of_lease(held) {
            Some((permits, slot)) => vec![permits.slot(slot), held.clone()],
            None => vec![held.clone()],
        }
    }

    pub(crate) fn slot(&self, slot: u32) -> EncodedName {
        self.gate.with(&format!("{slot:02}"))
    }

    pub(crate) fn lease(&self, slot: u32) -> EncodedName {
        self.gate.with(&format!("{slot:02}/{:02}", self.limit))
    }

    /// Returns all names that an attempt may have taken.
    pub(crate) fn taken_by_attempt(&self) -> Vec<EncodedName> {
        let slots = 0..self.limit;
        let names = slots.flat_map(|slot| [self.slot(slot), self.lease(slot)]);
        names.chain([self.gate.bell(), self.gate.clone()]).collect()
    }

    /// Returns the names of which one is held by another session if a lock or a semaphore is busy.
    pub(crate) fn excluding(name: &EncodedName) -> Vec<EncodedName> {
        let mut names = vec![name.clone()];
        if name.semaphore_part().is_some() {
            let (gate, limit) = (name.clone(), MAX_PERMITS);
            let permits = Self { gate, limit };
            names.push(permits.gate.bell());
            names.extend((0..limit).map(|slot| permits.slot(slot)));
        }
        names
    }

    /// Returns the leases of all limits.
    pub(crate) fn all_leases(gate: &EncodedName) -> Vec<EncodedName> {
        let leases = |limit| {
            let gate = gate.clone();
            let permits = Self { gate, limit };
            (0..limit).map(move |slot| permits.lease(slot))
        };
        (1..=MAX_PERMITS).flat_map(leases).collect()
    }

    /// Takes a permit without a wait, if no session waits for one.
    pub(crate) fn attempt(&self) -> Template {
        let mut template = Template::default();
        // Another attempt holds the gate for the time of its statement: that is no reason to fail.
        template
            .add("SELECT CASE WHEN IS_USED_LOCK(")
            .name(&self.gate.bell());
        template
            .add(&format!(") THEN {UNKNOWN} ELSE CASE GET_LOCK("))
            .name(&self.gate)
            .add(",1) WHEN 1 THEN ");
        self.take(&mut template, |template| {
            template.add("0");
        });
        template.add(&format!(
            " WHEN 0 THEN {UNKNOWN} END END,UUID_SHORT(),RELEASE_LOCK("
        ));
        template.name(&self.gate).add(")");
        template
    }

    /// Takes a permit on the session that holds the bell, or pauses without the gate. The pause ends early when a
    /// permit is released: the session holds the bell before it looks at the slots.
    ///
    /// It pauses by waiting for slot 0, which another session holds: MariaDB can stop for two seconds when it ends a
    /// `SLEEP` that just begins.
    pub(crate) fn attempt_or_pause(&self, seconds: f64) -> Template {
        let mut template = Template::default();
        // Only an attempt may hold it, for the time of its statement.
        template.add("SELECT CASE WHEN GET_LOCK(").name(&self.gate);
        template.add(",1)=1 THEN ");
        self.take(&mut template, |template| {
            // An attempt that found the bell free just before may wait for the gate, and with it its session's releases.
            template
                .add("0*COALESCE(RELEASE_LOCK(")
                .name(&self.gate)
                .add("),0)+0*COALESCE(GET_LOCK(")
                .name(&self.slot(0))
                .add(&format!(",{seconds:.3}),0)+0*COALESCE(RELEASE_LOCK("))
                .name(&self.slot(0))
                .add("),0)");
        });
        template.add(" ELSE 0 END,UUID_SHORT(),RELEASE_LOCK(");
        template.name(&self.gate).add(")");
        template
    }

    /// Adds a column for the session that holds the gate: 1 and the number of a free slot, which the session
    /// takes with its lease; `otherwise` if no slot is free; [`UNKNOWN`] if a slot is used without a lease of this
    /// limit, which is also so for a short time while a session ends.
    fn take(&self, template: &mut Template, otherwise: impl FnOnce(&mut Template)) {
        let slots: Vec<_> = (0..MAX_PERMITS).map(|slot| self.slot(slot)).collect();
        let leases: Vec<_> = (0..self.limit).map(|slot| self.lease(slot)).collect();
        let mut before = "CASE WHEN ";
        for (number, slot) in slots.iter().enumerate() {
            template.add(before);
            before = " OR ";
            if let Some(lease) = leases.get(number) {
                template.add("IS_FREE_LOCK(").name(lease).add(") AND ");
            }
            template.add("IS_USED_LOCK(").name(slot).add(")");
        }
        template.add(&format!(" THEN {UNKNOWN}"));
        for (number, (slot, lease)) in (1..).zip(slots.iter().zip(&leases)) {
            template.add(" WHEN IS_FREE_LOCK(").name(slot);
            template.add(") THEN CASE GET_LOCK(").name(slot);
            // A session that releases a permit frees the slot first.
            template.add(",0)+GET_LOCK(").name(lease);
            template.add(&format!(",1) WHEN 2 THEN {number} END"));
        }
        template.add(" ELSE ");
        otherwise(template);
        template.add(" END");
    }

    /// Returns what the column of [`take`](Self::take) says.
    pub(crate) fn taken(column: u64) -> Slot {
        match column {
            0 => Slot::None,
            UNKNOWN => Slot::Unknown,
            number => u32::try_from(number - 1).map_or(Slot::None, Slot::Taken),
        }
    }

    /// Releases a permit by one column: an odd number if the session held it, and twice the number of the
    /// session that waits for one, unless it waits for this slot.
    ///
    /// The slot is released first: a lease that is free while its slot is used means another limit.
    pub(crate) fn release(&self, slot: u32) -> Template {
        let mut template = Template::default();
        template
            .add("COALESCE(RELEASE_LOCK(")
            .name(&self.slot(slot));
        template.add("),0)+0*COALESCE(RELEASE_LOCK(");
        template.name(&self.lease(slot)).add("),0)");
        if slot > 0 {
            template.add("+2*COALESCE(IS_USED_LOCK(");
            template.name(&self.gate.bell()).add("),0)");
        }
        template
    }
}
