//! Goal: earlier states of a disk are exports under its rules, and clients learn the changes since
//! them, on any thread. Method: a disk in memory that retains its initial state; scripted clients.

use super::super::{Earlier, Policy, Rate, Rules};
use super::dialects::{self, descriptors};
use super::threads::{World, choice};
use super::*;
use crate::wire::{option, reply};
use pumice_drive::base::Clock;

/// Returns the export `disk@NAME`.
pub(super) fn earlier(of: &Export, name: &str, sequence: u64) -> Rc<Export> {
    let disk = Rc::new(MemoryDisk { is_read_only: true, ..MemoryDisk::default() });
    // A bookmark no longer has data.
    let is_readable = !name.starts_with("mark");
    let at = Earlier { of: of.name.clone(), name: name.into(), sequence, is_readable };
    Rc::new(of.of_earlier(format!("{}@{name}", of.name), String::new(), disk, at))
}

/// Runs `client` against a server of `disk` and earlier states of it, the oldest first.
fn serve_states(
    states: &[&str],
    policy: Policy,
    client: impl FnOnce(Door) + Send + 'static,
) -> Rc<MemoryDisk> {
    let runtime = Runtime::new(Backend::Auto).unwrap();
    let disk = Rc::new(MemoryDisk::default());
    let export = Rc::new(Export::new("disk", "", disk.clone()));
    let states = (1..).zip(states).map(|(number, name)| earlier(&export, name, number));
    let exports = [export.clone()].into_iter().chain(states).collect();
    let options = Options { policy, ..Options::default() };
    let server = Server::new(runtime.clone(), exports, options);
    serve_with(&runtime, &server, &disk, client);
    disk
}

/// Returns a connection that has negotiated structured replies.
fn haggling(door: &Door) -> Client {
    let mut client = door.connect();
    client.greet(3);
    client.agree(option::STRUCTURED_REPLY);
    client
}

/// Queries the changes in the first blocks, and checks the answer.
fn expect_changes(client: &mut Client, contexts: &[u32]) {
    client.request(command::BLOCK_STATUS, 0, 9, 4096, 8 * 4096);
    for &id in contexts {
        assert_eq!(descriptors(&client.chunk()), (id, vec![(4096, 0), (8192, 1), (20480, 0)]));
    }
}

fn change_blocks(client: &mut Client) {
    client.request(command::WRITE, 0, 3, 2 * 4096 + 17, 5000);
    client.send(&[1; 5000]);
    assert_eq!(client.chunk().cookie, 3);
}

const CONTEXTS: [&str; 2] = ["qemu:dirty-bitmap:new", "x-pumice:changed:new"];

fn selected() -> Vec<(u32, String)> {
    vec![(3, CONTEXTS[0].to_owned()), (4, CONTEXTS[1].to_owned())]
}

#[test]
fn clients_learn_the_changes_since_a_state() {
    serve_states(&["new", "gone"], Policy::default(), |door| {
        let mut client = haggling(&door);
        // Contexts are listed in the order of their kinds, not in the order of the queries.
        assert_eq!(client.select("disk", &[CONTEXTS[1], CONTEXTS[0]]), selected());
        client.go();
        change_blocks(&mut client);
        expect_changes(&mut client, &[3, 4]);
        // A later state cannot be selected for an earlier one, nor can an unknown state.
        let mut client = haggling(&door);
        assert_eq!(client.select("disk@new", &["qemu:dirty-bitmap:gone"]), []);
        assert_eq!(client.select("disk@gone", &CONTEXTS), selected());
        assert_eq!(client.select("disk", &["qemu:dirty-bitmap:old"]), []);
        // A state that the disk no longer has is an error, not an answer.
        assert_eq!(client.select("disk", &["qemu:dirty-bitmap:gone"]).len(), 1);
        client.go();
        client.request(command::BLOCK_STATUS, 0, 9, 0, 4096);
        assert!(client.chunk().payload.starts_with(&[0, 0, 0, 5]), "no EIO");
    });
}

#[test]
fn a_state_that_cannot_be_read_is_no_export_and_is_compared_with() {
    serve_states(&["mark", "new"], Policy::default(), |door| {
        let mut client = haggling(&door);
        client.option(option::LIST, &[]);
        let mut listed = Vec::new();
        loop {
            let (kind, entry) = client.option_reply(option::LIST);
            if kind == reply::ACK {
                break;
            }
            listed.push(String::from_utf8_lossy(&entry[4..]).into_owned());
        }
        assert_eq!(listed, ["disk", "disk@new"]);
        let data = [&9_u32.to_be_bytes()[..], b"disk@mark", &[0, 0]].concat();
        client.option(option::GO, &data);
        assert_eq!(client.option_reply(option::GO).0, reply::ERR_UNKNOWN);
        let mark = CONTEXTS.map(|name| name.replace("new", "mark"));
        let selected = [(3, mark[0].clone()), (4, mark[1].clone())];
        let mark: Vec<&str> = mark.iter().map(String::as_str).collect();
        assert_eq!(client.select("disk@new", &mark), selected);
        assert_eq!(client.select("disk", &mark), selected);
    });
}

#[test]
fn clients_on_other_threads_learn_it_too() {
    let ended = World::with_state().run(|door| {
        let mut client = haggling(&door);
        assert_eq!(client.select("a", &CONTEXTS), selected());
        client.option(option::GO, &choice("a"));
        assert_eq!(client.option_reply(option::GO).0, reply::INFO);
        assert_eq!(client.option_reply(option::GO), (reply::ACK, vec![]));
        change_blocks(&mut client);
        expect_changes(&mut client, &[3, 4]);
    });
    ended.result.unwrap();
}

#[test]
fn few_states_are_compared_at_a_time() {
    let states: Vec<String> = (0..9).map(|number| number.to_string()).collect();
    let states: Vec<&str> = states.iter().map(String::as_str).collect();
    serve_states(&states, Policy::default(), |door| {
        let mut client = haggling(&door);
        let names = |count: usize| -> Vec<String> {
            let both = |number| CONTEXTS.map(|name| name.replace("new", &format!("{number}")));
            (0..count).flat_map(both).collect()
        };
        let eight = names(8);
        let eight: Vec<&str> = eight.iter().map(String::as_str).collect();
        assert_eq!(client.select("disk", &eight).len(), 16);
        let nine = names(9);
        let nine: Vec<&str> = nine.iter().map(String::as_str).collect();
        client.option(option::SET_META_CONTEXT, &dialects::context_data("disk", &nine));
        let (kind, message) = client.option_reply(option::SET_META_CONTEXT);
        assert_eq!(kind, reply::ERR_TOO_BIG, "{}", String::from_utf8_lossy(&message));
    });
}

/// Guards against a state that circumvents the limits of its disk.
#[test]
fn a_disk_and_its_states_share_a_rate() {
    let rate = Rate { operations: Some(20), bytes: None };
    let rules = Rules { rate, ..Rules::default() };
    let policy = Policy { rules: [("disk".to_owned(), rules)].into(), ..Policy::default() };
    serve_states(&["new"], policy, |door| {
        let (mut disk, mut state) = (door.enter_at("disk"), door.enter_at("disk@new"));
        let clock = Runtime::new(Backend::Auto).unwrap();
        let begun_ns = clock.now_ns();
        for _ in 0..12 {
            assert_eq!(disk.call(command::FLUSH, 0, 0, 0), 0);
            assert_eq!(state.call(command::FLUSH, 0, 0, 0), 0);
        }
        // 24 requests, minus a free tenth of a second.
        let taken_ns = clock.now_ns() - begun_ns;
        assert!(taken_ns > 900_000_000, "{taken_ns} ns");
    });
}

#[test]
fn names_of_exports_stay_unique() {
    let runtime = Runtime::new(Backend::Auto).unwrap();
    let export = |name: &str| Rc::new(Export::new(name, "", Rc::new(MemoryDisk::default())));
    let disk = export("disk");
    let server = Server::new(runtime, vec![disk.clone(), export("disk@b")], Options::default());
    let names = || -> Vec<(String, bool)> {
        let exports = server.exports().into_iter();
        exports.map(|export| (export.name.clone(), export.earlier.is_some())).collect()
    };
    assert!(!server.add(earlier(&disk, "b", 1)), "the name is taken");
    assert!(server.add(earlier(&disk, "a", 2)));
    assert_eq!(names().len(), 3);
    // A disk replaces a state of the same name.
    assert!(server.add(export("disk@a")));
    let both = ["disk", "disk@b", "disk@a"].map(|name| (name.to_owned(), false));
    assert_eq!(names(), both);
}
