//! Goal: a forecast reports the cost and the benefit of parity over dies: capacity, write
//! amplification, lifetime, and the data lost if a die fails, with and without parity. Method: the
//! small drive with a smaller size and parity over its four dies.

use super::*;
use pumice_sim::ftl::FaultKind;

/// Returns a profile of 160 MiB on four dies of 80 MiB, one of them for parity.
fn with_parity() -> Profile {
    let text = fs::read_to_string(PROFILE).unwrap();
    assert!(text.contains("is = 268435456,"));
    let text = text.replace("is = 268435456,", "is = 167772160,");
    let parity = "\n[parity]\nstripe_dies = { is = 4, guess = \"x\" }\n";
    Profile::parse(&format!("{text}{parity}"), "small.toml").unwrap()
}

fn test_of(workload: &str, options: &ForecastOptions) -> (Forecast, Test) {
    let profile = with_parity();
    let made = made_on(&profile, workload, &saved(50.0), &Asked::default(), options).unwrap();
    let test = made.tests[0].clone();
    (made, test)
}

#[test]
fn parity_costs_its_share_of_the_flash() {
    let (made, test) = test_of("rewrite", &ForecastOptions::default());
    let parity = made.parity.expect("it has parity");
    assert_eq!((parity.stripe_dies, parity.parity_bytes), (4, 80 << 20));
    assert_eq!(parity.over_provisioning_percent, 50.0, "240 MiB for 160");
    assert_eq!(parity.over_provisioning_percent_without, 100.0);
    let bare = test.without_parity.as_ref().expect("it was simulated, too");
    let (of, without) = (amplification(&test.drive), amplification(bare));
    for of in [of, without, amplification(test.uncompressed.as_ref().unwrap())] {
        let moved = of.rewritten + of.collected + of.leveled;
        let sum = of.host + moved + of.padding + of.parity + of.overhead;
        assert!((sum / of.all - 1.0).abs() < 1e-3, "{of:?}");
    }
    // Sequential writes need no garbage collection; one row in four is parity.
    assert!((of.parity / (of.all * 0.9) - 0.25).abs() < 1e-3, "{of:?}");
    assert_eq!(without.parity, 0.0);
    assert!((of.all / without.all - 4.0 / 3.0).abs() < 0.01, "{of:?} {without:?}");
    let life = |figures: &Figures| figures.endurance.unwrap().host_bytes;
    assert!((life(&test.drive) / life(bare) - 0.75).abs() < 0.01);
    let speed = test.drive.all.mb_per_s / bare.all.mb_per_s;
    assert!((speed - 0.75).abs() < 0.01, "{speed}");
    let plain = made_on(
        &with_parity().without_parity(),
        "rewrite",
        &saved(50.0),
        &Asked::default(),
        &ForecastOptions::default(),
    );
    let plain = plain.unwrap();
    assert_eq!((plain.parity, &plain.tests[0].without_parity), (None, &None));
    let same = Figures { lost_die: None, ..bare.clone() };
    assert_eq!(plain.tests[0].drive, same, "what it is without is a drive of its own");
}

#[test]
fn a_lost_die_takes_nothing_with_parity_and_its_share_without() {
    let (made, test) = test_of("random-write", &ForecastOptions::default());
    let with = test.drive.lost_die.expect("it has parity");
    let without = test.without_parity.as_ref().unwrap().lost_die.expect("to compare");
    assert_eq!((with.lost_bytes, without.rebuilt_bytes), (0.0, 0.0));
    assert!(with.is_rebuilt && with.rebuild_seconds > 0.0);
    // A quarter of the 160 MiB of host blocks, and a few blocks that straddle two rows.
    let quarter = (160 << 20) as f64 / 4.0;
    assert!((without.lost_bytes / quarter - 1.0).abs() < 0.5, "{without:?}");
    assert!(without.lost_bytes >= quarter, "{without:?}");
    // The stored size is half of that, plus the incomplete part of each stripe.
    assert!((with.rebuilt_bytes / (without.lost_bytes / 2.0) - 1.0).abs() < 0.1, "{with:?}");
    let text = made.summary().to_text();
    for words in ["parity", "one die in 4", "no parity", "if a die failed now, lost"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert_eq!(simple("random-write", &saved(50.0)).drive.lost_die, None);
}

#[test]
fn parts_fail_in_a_separate_round() {
    let fault = |text: &str| PlannedFault::parse(text).unwrap();
    let options = ForecastOptions {
        // All faults are on one die, so no stripe is hit twice.
        faults: vec![fault("die:3@50%"), fault("block:3@10%"), fault("page:3")],
        ..ForecastOptions::default()
    };
    let (made, test) = test_of("random-read", &options);
    let (_, before) = test_of("random-read", &ForecastOptions::default());
    let measured = Figures { failing: None, ..test.drive.clone() };
    assert_eq!(measured, before.drive, "the measured round knows nothing of it");
    let failing = test.drive.failing.as_ref().unwrap();
    assert_eq!(failing.faults, ["die:3@50%", "block:3@10%", "page:3@0%"]);
    assert_eq!((failing.ended_by.as_ref(), failing.unreadable_blocks), (None, 0));
    assert_eq!(failing.lost.lost_bytes, 0.0);
    assert!(failing.lost.rebuilt_bytes > 0.0 && failing.lost.is_rebuilt);
    let ratio = failing.all.mb_per_s / test.drive.all.mb_per_s;
    assert!(ratio < 0.99, "a rebuild is in the way of the host: {ratio}");
    let bare = test.without_parity.as_ref().unwrap().failing.as_ref().unwrap();
    assert!(bare.unreadable_blocks > 0 && bare.lost.lost_bytes > 0.0, "{bare:?}");
    assert_eq!(bare.lost.rebuilt_bytes, 0.0);
    let text = made.summary().to_text();
    assert!(text.contains("blocks the host could not read"), "{text}");
}

#[test]
fn mistakes_about_faults_are_named() {
    for (text, kind, die, percent) in [
        ("die:3@50%", FaultKind::Die, 3, 50.0),
        ("block:0", FaultKind::Block, 0, 0.0),
        ("page:31@12.5%", FaultKind::Page, 31, 12.5),
    ] {
        assert_eq!(PlannedFault::parse(text).unwrap(), PlannedFault { kind, die, percent });
    }
    for text in
        ["", "die", "die:", "die:-1", "disk:3", "die:3@", "die:3@50", "die:3@101%", "die:3@NaN%"]
    {
        let error = PlannedFault::parse(text).unwrap_err().to_string();
        let words =
            format!("'{text}' is not a fault: expected die:NUMBER, block:NUMBER or page:NUMBER");
        assert!(error.starts_with(&words), "{error}");
    }
    let options = ForecastOptions {
        faults: vec![PlannedFault::parse("die:4").unwrap()],
        ..ForecastOptions::default()
    };
    let refused = |profile: &Profile, words: &str| {
        let made = made_on(profile, "rewrite", &saved(0.0), &Asked::default(), &options);
        let error = made.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    refused(&with_parity(), "--fail die:4@0%: the drive has 4 dies, 0 to 3");
    refused(&Profile::find("hdd-2010").unwrap(), "--fail is for profiles of kind \"log\" only");
}
