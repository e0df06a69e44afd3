//! The table of cases. Each rule of the contract is a module, and each case is a function that fails
//! by a panic.

mod admin;
mod batch;
mod proposed_epoch;
mod rule_01_exclusion;
mod rule_02_wait;
mod rule_03_lease;
mod rule_04_renewal;
mod rule_05_release;
mod rule_06_fencing;
mod rule_07_names;
mod rule_08_queue;
mod rule_09_between_processes;
mod rule_10_resources;
mod rule_11_cancel;
mod rule_12_not_reentrant;
mod rule_13_nothing_silent;
mod rule_14_outage;
mod rule_15_drop;
mod rule_16_loss;
mod rule_17_admin;
mod rule_17_modes;
mod rule_17_permits;
mod rule_17_several;
mod rule_17_shared;
mod rule_17_starvation;
mod rule_19_tickets;

use crate::rig::{Outcome, Rig};

/// A row of the table.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&Rig<'_>) -> Outcome,
}

macro_rules! table {
    ($($rule:ident: $($case:ident),+;)+) => {
        &[$($(Case {
            name: concat!(stringify!($rule), "::", stringify!($case)),
            run: $rule::$case,
        }),+),+]
    };
}

pub(crate) static TABLE: &[Case] = table! {
    rule_01_exclusion:
        threads_of_one_keeper,
        threads_of_two_keepers,
        two_keepers_of_one_provider,
        four_processes_with_faults,
        forked_siblings;
    rule_02_wait:
        waits_end_at_their_deadlines,
        zero_wait_is_one_attempt,
        one_of_hundred_attempts_is_granted,
        unreachable_store_is_unavailable;
    rule_03_lease:
        expired_lease_is_lost_before_the_next_grant,
        expired_lease_is_not_renewed,
        late_release_keeps_the_next_lease,
        killed_holder_is_replaced_within_the_ttl,
        dead_owner_is_replaced_at_once,
        unreaped_dead_owner_is_replaced_at_once,
        stopped_holder_is_lost_when_it_resumes;
    rule_04_renewal:
        lease_is_renewed_beyond_its_ttl,
        long_lease_is_renewed_less_often_than_a_short_one,
        outage_shorter_than_the_lease_keeps_the_lock,
        outage_longer_than_the_lease_loses_the_lock,
        slow_store_keeps_its_leases;
    rule_05_release:
        release_frees_the_name_at_once,
        renewal_after_the_store_ended_the_lease,
        release_in_an_outage_is_bounded;
    rule_06_fencing:
        tokens_grow_over_keepers,
        tokens_grow_after_the_store_was_wiped,
        tokens_grow_after_the_store_was_closed,
        commit_proof_matches_the_capability;
    rule_07_names:
        different_strings_are_different_locks,
        equal_strings_are_the_same_lock,
        permits_of_a_string_are_not_the_lock_of_another,
        namespaces_are_separate;
    rule_08_queue:
        hundred_threads_are_one_waiter_in_the_store;
    rule_09_between_processes:
        release_wakes_the_other_keeper,
        release_wakes_the_other_process,
        busy_process_does_not_starve_another,
        woken_waiter_is_served_before_the_releaser,
        timed_out_waiter_does_not_block_the_next,
        cancelled_waiter_passes_its_wakeup_on,
        killed_waiter_does_not_block_the_next,
        stopped_waiter_does_not_block_the_next;
    rule_10_resources:
        released_locks_leave_nothing_in_the_store,
        hundreds_of_locks_leak_no_resources;
    rule_11_cancel:
        cancel_in_the_store,
        cancel_during_a_release,
        close_ends_the_waits_of_a_keeper;
    rule_12_not_reentrant:
        holding_thread_waits_like_any_other;
    rule_13_nothing_silent:
        missing_required_capability_is_an_error;
    rule_14_outage:
        wait_ends_in_an_outage_or_outlasts_it,
        acquisition_that_rides_no_outage_out_fails,
        outage_is_told_until_the_store_answers_again;
    rule_15_drop:
        drop_in_an_outage_is_finished_after_it;
    rule_16_loss:
        wiped_store_tells_its_holders,
        ended_lease_is_told_to_its_holder,
        forced_release_is_told_to_its_holder,
        losses_in_a_row_are_told_as_soon_as_the_first,
        handled_signals_lose_no_lease,
        handled_signals_extend_no_limit;
    rule_17_modes:
        modes_that_the_store_lacks_are_refused,
        waits_outlast_an_outage,
        wiped_store_loses_every_lease;
    rule_17_shared:
        readers_of_several_keepers_hold_together,
        fresh_lease_takes_over_from_an_old_one,
        fixed_leases_are_not_shared,
        reader_waits_behind_a_waiting_writer,
        readers_behind_a_writer_enter_together,
        ended_wait_of_a_writer_lets_readers_in,
        killed_writer_lets_readers_in,
        stopped_writer_lets_readers_in;
    rule_17_permits:
        permits_have_the_smallest_free_slots,
        many_permits_are_held_at_once,
        waiters_get_the_permits_that_end,
        another_limit_is_a_mismatch_while_permits_are_held,
        mismatch_of_one_thread_is_not_told_to_another,
        another_limit_is_a_mismatch_behind_waiters,
        permits_and_the_lock_of_a_name_are_separate;
    rule_17_several:
        several_names_are_held_and_released_together,
        name_that_is_held_leaves_none_of_them_locked,
        wait_for_several_names_ends_at_one_deadline,
        overlapping_sets_are_granted_to_crowds;
    rule_17_admin:
        forced_release_ends_one_lease_of_a_name,
        forced_release_wakes_a_waiter,
        waiters_for_lock_and_permits_are_counted_apart;
    rule_17_starvation:
        stream_of_one_mode_starves_no_waiter;
    rule_19_tickets:
        store_without_tickets_says_so,
        ticket_passes_a_lock_on,
        last_one_that_resumes_has_the_lock,
        resumption_overtakes_no_drop,
        former_holder_is_lost_at_its_own_deadline,
        lock_of_a_ticket_is_not_handed_over,
        waiter_gets_the_lock_when_it_is_released,
        ticket_ends_with_its_lease,
        tickets_leave_no_connections,
        lock_outlives_the_process_that_detached_it,
        foreign_or_changed_ticket_is_refused,
        resumption_rides_an_outage_out;
    batch:
        batch_answers_each_operation,
        batch_tells_the_leases_of_a_name_apart,
        request_after_its_deadline_is_not_sent,
        threads_with_names_of_their_own_are_granted_them;
    proposed_epoch:
        proposal_is_granted_exactly_or_refused_with_the_last,
        proposals_and_own_epochs_of_the_store_grow_together;
    admin:
        held_lists_the_holders,
        held_in_all_namespaces_names_them,
        held_counts_the_waiters,
        forced_release_loses_the_guard,
        examine_reports_findings;
};
