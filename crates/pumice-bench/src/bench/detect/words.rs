//! Text of a detection's report.

use super::{
    Account, Answer, Class, Data, Detection, Operation, Strength, Sweep, SweepStep, Zeroes, judge,
};
use pumice_drive::base::units::format_size;
use pumice_report::{Align, Cell, Document, Number, Table};

/// Returns the conclusion and its reasons, in a paragraph.
pub(super) fn verdict(detection: &Detection) -> String {
    let mut text = vec![answer(detection)];
    text.extend(space(detection));
    text.extend(threshold(detection));
    text.extend(reach(detection));
    text.push(zeroes(detection.zeroes).to_owned());
    if matches!(detection.zeroes, Zeroes::Stored | Zeroes::Unknown)
        && judge::faster(&detection.speeds, |data| data == Data::Zeroes)
    {
        text.push("They are faster than other data, which does not require compression.".into());
    }
    if detection.stopped {
        text.push("The detection was interrupted.".into());
    }
    text.join(" ")
}

fn answer(detection: &Detection) -> String {
    let target = &detection.target;
    match detection.answer {
        Answer::Compresses => format!(
            "{target} compresses, and does not deduplicate data that is {} apart.",
            format_size(detection.span_bytes / super::data::COPIES)
        ),
        Answer::Deduplicates => format!("{target} deduplicates, and does not compress."),
        Answer::Both => format!("{target} compresses and deduplicates."),
        Answer::ShowsNone => format!(
            "{target} does not show any compression or deduplication: compressible and duplicate \
             data takes its full space and is not faster than incompressible data. Compression \
             inside a device that does not make it faster cannot be detected."
        ),
        Answer::CannotTell => cannot_tell(detection),
    }
}

fn cannot_tell(detection: &Detection) -> String {
    let target = &detection.target;
    let perhaps = |what: &str| {
        format!(
            "It is unclear whether {target} {what}: such data is significantly faster than \
             incompressible data, but no readable number shows that it takes less space, and there \
             may be other causes."
        )
    };
    if judge::faster(&detection.speeds, judge::is_compressible) {
        return perhaps("compresses");
    }
    if judge::faster(&detection.speeds, |data| data == Data::Duplicates) {
        return perhaps("deduplicates");
    }
    if detection.stopped {
        return format!("It is unclear whether {target} compresses: too few runs were made.");
    }
    format!(
        "It is unclear whether {target} compresses or deduplicates: no readable number \
         shows how much space data takes, and neither compressible nor duplicate data is faster."
    )
}

/// Returns the savings of the best account.
fn space(detection: &Detection) -> Option<String> {
    let index = judge::best(&detection.accounts).or_else(|| {
        let sure = |account: &Account| account.strength == Strength::Sure;
        detection.accounts.iter().position(sure)
    })?;
    let account = &detection.accounts[index];
    let mut parts = Vec::new();
    for data in [Data::Saving(50.0), Data::Saving(90.0), Data::Duplicates] {
        if let Some(saved) = account.saved(data) {
            let (name, percent) = (data.name(), (saved * 100.0).max(0.0));
            let ratio = 1.0 / (1.0 - saved).max(1e-3);
            parts.push(format!("{name}: {percent:.1} % less (ratio {ratio:.2})"));
        }
    }
    Some(format!("By the {}, against incompressible data: {}.", account.name, parts.join(", ")))
}

fn threshold(detection: &Detection) -> Option<String> {
    let sweep = detection.threshold.as_ref()?;
    let tried = sweep.steps.iter().map(|step| step.value).filter(|value| *value > 0.0);
    Some(match sweep.limit {
        Some(limit) => match tried.filter(|value| *value < limit).reduce(f64::max) {
            Some(below) => {
                format!("Data that can save {limit} % takes less space; at {below} % it does not.")
            }
            None => format!("Data that can save {limit} %, the least tested, takes less space."),
        },
        None => "No single step of the threshold sweep saved space.".into(),
    })
}

fn reach(detection: &Detection) -> Option<String> {
    let sweep = detection.reach.as_ref()?;
    let farthest = sweep.steps.last().map_or(0.0, |step| step.value);
    let size = |bytes: f64| format_size(bytes as u64);
    Some(match sweep.limit {
        None => {
            "Repeats save no space even 2 KiB apart: it compresses units of less than 4 KiB, or \
             encodes single bytes but no repeats."
                .into()
        }
        Some(limit) if limit >= farthest => format!(
            "Repeats save space {} apart, the largest distance tested: it compresses units of {} \
             or more.",
            size(limit),
            size(limit * 2.0)
        ),
        Some(limit) => format!(
            "Repeats save space up to {} apart, but not {} apart: it compresses units of {}, or \
             the window of its codec ends there.",
            size(limit),
            size(limit * 2.0),
            size(limit * 2.0)
        ),
    })
}

fn zeroes(zeroes: Zeroes) -> &'static str {
    match zeroes {
        Zeroes::Stored => "Zeroes are stored like any data.",
        Zeroes::Compressed => "Zeroes take a little space, like data that compresses well.",
        Zeroes::LeftOut => "Zeroes take no space.",
        Zeroes::Fill => "Zeroes take no space: their value is recorded.",
        Zeroes::Unmapped => "Zeroes take no space: they leave holes.",
        Zeroes::Unknown => "It is unknown how zeroes are stored.",
    }
}

impl Detection {
    /// Returns the full report.
    pub fn document(&self) -> Document {
        let mut document = Document::new(format!("Compression of {}", self.target), &*self.verdict);
        let space = document.section("Space");
        space.paragraph(
            "Growth of each number, in bytes, after equal amounts of each kind of data were \
             written: median of the runs, and the share saved compared with incompressible data.",
        );
        for account in &self.accounts {
            space.block(account_table(account));
            if let Some(reason) = &account.unusable {
                space.warning(format!("Not usable: {reason}."));
            }
        }
        for remark in &self.remarks {
            space.note(remark);
        }
        let speed = document.section("Speed");
        speed.paragraph(
            "Means of the runs, compared with incompressible data. Speed alone is only a hint; a \
             difference counts if it is significant and above 10 %.",
        );
        speed.block(self.speed_table());
        for (heading, name, sweep) in [
            ("Threshold", "data can save (%)", &self.threshold),
            ("Unit", "repeats apart (KiB)", &self.reach),
        ] {
            if let Some(sweep) = sweep {
                document.section(heading).block(sweep_table(name, sweep));
            }
        }
        let mut facts = self.environment.clone();
        facts.push(("bytes per run".into(), format_size(self.span_bytes)));
        facts.push(("seed".into(), self.seed.to_string()));
        document.section("Measured on").pairs(facts);
        document
    }

    fn speed_table(&self) -> Table {
        let mut table = Table::new(&[
            ("data", Align::Left),
            ("operation", Align::Left),
            ("incompressible (MB/s)", Align::Right),
            ("this (MB/s)", Align::Right),
            ("ratio", Align::Right),
            ("p", Align::Right),
            ("evidence", Align::Left),
        ]);
        let mean = |rates: &[f64]| rates.iter().sum::<f64>() / rates.len().max(1) as f64;
        for speed in &self.speeds {
            let operation = match speed.operation {
                Operation::Write => "write",
                Operation::Read => "read",
            };
            table.push(vec![
                speed.data.name().into(),
                operation.into(),
                Number::new(mean(&speed.base_rates), 0).into(),
                Number::new(mean(&speed.rates), 0).into(),
                Number::new(speed.comparison.ratio, 2).into(),
                Number::new(speed.comparison.p, 4).into(),
                if speed.counts { "perhaps" } else { "none" }.into(),
            ]);
        }
        table
    }
}

fn account_table(account: &Account) -> Table {
    let class = match account.class {
        Class::Usage => "reported usage",
        Class::Counter => "counter",
    };
    let mut table = Table::new(&[
        ("data", Align::Left),
        ("bytes", Align::Right),
        ("saved (%)", Align::Right),
        ("evidence", Align::Left),
    ])
    .titled(format!("{class}: {}", account.name));
    for amount in &account.amounts {
        let mut sorted = amount.bytes.clone();
        sorted.sort_unstable();
        let middle = sorted.get(sorted.len() / 2).map(|bytes| Number::new(*bytes as f64, 0));
        let evidence = match account.strength {
            Strength::Unusable => "unusable",
            _ if amount.shown => "sure",
            _ => "none",
        };
        let saved = amount.saved.map(|saved| Number::new(saved * 100.0, 1));
        table.push(vec![amount.data.name().into(), middle.into(), saved.into(), evidence.into()]);
    }
    table
}

fn sweep_table(name: &str, sweep: &Sweep) -> Table {
    let mut table = Table::new(&[
        (name, Align::Right),
        ("bytes", Align::Right),
        ("saved (%)", Align::Right),
        ("counts", Align::Left),
    ])
    .titled(format!("by the {}", sweep.usage_source));
    let in_kib = name.ends_with("(KiB)");
    for SweepStep { value, taken_bytes, saved, is_saved } in &sweep.steps {
        let value = if in_kib { value / 1024.0 } else { *value };
        let value: Cell = Number::new(value, if in_kib { 0 } else { 1 }).into();
        let (bytes, saved) = (Number::new(*taken_bytes as f64, 0), Number::new(saved * 100.0, 1));
        let counts = if *is_saved { "yes" } else { "no" };
        table.push(vec![value, bytes.into(), saved.into(), counts.into()]);
    }
    table
}
