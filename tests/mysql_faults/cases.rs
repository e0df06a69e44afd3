//! The faults, each on both servers.

mod clients;
mod contended;
mod network;
mod refused;
mod server;
mod sessions;
mod sharing;
mod store;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use lockkeeper_testkit::{Fault, MySqlKind};

use crate::rig::threads_end;

type Case = (&'static str, fn(MySqlKind));

const CASES: &[Case] = &[
    ("restarted_while_held", server::restarted_while_held),
    (
        "restarted_while_waited_for",
        server::restarted_while_waited_for,
    ),
    (
        "killed_for_good_while_held",
        server::killed_for_good_while_held,
    ),
    (
        "stopped_past_every_deadline",
        server::stopped_past_every_deadline,
    ),
    ("read_only", server::read_only),
    ("holders_session_killed", sessions::holders_session_killed),
    ("waiters_sessions_killed", sessions::waiters_sessions_killed),
    (
        "waiters_statements_killed",
        sessions::waiters_statements_killed,
    ),
    ("limits_lowered", sessions::limits_lowered),
    ("no_connection_left", sessions::no_connection_left),
    (
        "two_names_in_opposite_order",
        sessions::two_names_in_opposite_order,
    ),
    ("holder_stopped_past_its_ttl", clients::holder_stopped),
    (
        "waiter_stopped_with_its_grant_in_the_socket",
        clients::waiter_stopped_with_its_grant,
    ),
    (
        "applications_pool_run_dry",
        sharing::applications_pool_run_dry,
    ),
    (
        "hundred_waiting_threads_use_one_connection",
        sharing::hundred_threads,
    ),
    (
        "thousand_names_on_eight_connections",
        sharing::thousand_names,
    ),
    ("shared_session_killed", sharing::session_killed),
    ("shared_session_in_doubt", sharing::session_in_doubt),
    (
        "shared_session_outlasts_a_neighbours_call",
        sharing::session_outlasts_a_neighbours_call,
    ),
    (
        "own_abandoned_attempt_is_not_busy",
        sharing::own_abandoned_attempt_is_not_busy,
    ),
    (
        "own_half_open_session_is_not_busy",
        network::own_half_open_session_is_not_busy,
    ),
    (
        "own_half_open_wait_is_not_busy",
        network::own_half_open_wait_is_not_busy,
    ),
    ("late_kill_spares_the_next_hold", sessions::late_kill),
    ("request_dropped", |kind| {
        network::lost_on_the_way(kind, Fault::DropRequests);
    }),
    ("reply_dropped", |kind| {
        network::lost_on_the_way(kind, Fault::DropReplies);
    }),
    ("cut_before_the_reply", |kind| {
        network::lost_on_the_way(kind, Fault::CutReplyAfter(0));
    }),
    ("cut_mid_reply", |kind| {
        network::lost_on_the_way(kind, Fault::CutReplyAfter(7));
    }),
    ("waits_lost_on_the_way", network::waits_lost_on_the_way),
    (
        "reply_later_than_the_ttl",
        network::reply_later_than_the_ttl,
    ),
    (
        "request_later_than_the_wait",
        network::request_later_than_the_wait,
    ),
    (
        "late_answers_are_nobody_elses",
        network::late_answers_are_nobody_elses,
    ),
    (
        "renewal_later_than_the_ttl",
        network::renewal_later_than_the_ttl,
    ),
    ("dark_while_held", network::dark_while_held),
    ("dark_while_waited_for", network::dark_while_waited_for),
    ("contended_through_it_all", contended::through_it_all),
    ("wrong_password", refused::wrong_password),
    ("unknown_database", refused::unknown_database),
    ("missing_privileges", refused::missing_privileges),
    ("nobody_there", refused::nobody_there),
    ("somebody_else_there", refused::somebody_else_there),
    ("tls", refused::tls),
];

pub(crate) fn main() -> ExitCode {
    if let Some(url) = clients::url_of_the_child() {
        return clients::be_the_child(&url);
    }
    let mut arguments = Arguments::from_args();
    // They wait more than they work.
    arguments.test_threads.get_or_insert(12);
    let trials = MySqlKind::ALL.iter().flat_map(|&kind| {
        CASES.iter().map(move |&(name, case)| {
            Trial::ignorable_test(format!("{kind}::{name}"), move || match kind.ignored() {
                Some(reason) => Ok(Completion::ignored_with(reason)),
                None => {
                    case(kind);
                    Ok::<_, Failed>(Completion::Completed)
                }
            })
        })
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    // Now that nothing else runs, no thread of a keeper may.
    if !conclusion.has_failed() {
        threads_end();
    }
    conclusion.exit_code()
}
