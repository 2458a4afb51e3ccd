//! Takes a snapshot of a drive in memory, changes the disk, reads the snapshot beside it, and rolls
//! the disk back.
//!
//! ```sh
//! cargo run --package pumice-drive --example snapshots
//! ```

use std::rc::Rc;

use pumice_drive::snapshots::NewSnapshot;
use pumice_drive::{Backend, Drive, MemMedium, OpenOptions, Result, Runtime, Spec, Uuid, create};

fn main() -> Result<()> {
    let runtime = Runtime::new(Backend::Auto)?;
    let spec = Spec::new(Uuid::from_u128(0x736e_6170), 64 << 20);
    let medium = Rc::new(MemMedium::new(spec.geometry()?.medium_bytes()));
    runtime.block_on(async {
        create(&*medium, &spec).await?;
        let drive = Drive::open(medium, runtime.clock(), OpenOptions::default()).await?;
        drive.write(0, b"before").await?;

        // The name is for people, the identity for copies on other drives: use `Uuid::new_v4()`.
        let new = NewSnapshot {
            name: "upgrade".into(),
            guid: Uuid::from_u128(1),
            created_seconds: 1_800_000_000,
            yields: false,
        };
        let info = drive.create_snapshot(new).await?;
        println!("{} holds {} mapped bytes", info.name, info.mapped_bytes);
        drive.write(0, b"after!").await?;

        // A view is a drive that only reads. The snapshot cannot be deleted while the view exists.
        let view = drive.view("upgrade", OpenOptions::default()).await?;
        let mut read = [0; 6];
        view.read(0, &mut read).await?;
        assert_eq!(&read, b"before");
        drop(view);

        drive.roll_back("upgrade", false).await?;
        drive.read(0, &mut read).await?;
        assert_eq!(&read, b"before");
        drive.delete_snapshot("upgrade").await?;
        drive.close().await
    })?;
    println!("rolled back");
    Ok(())
}

#[test]
fn it_runs() {
    main().unwrap();
}
