//! Who duplicates what: how good the distributions are.

use forkpoint::restore::{Balanced, Workload, balance, key_groups_of, subtasks_of};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

/// 4 KiB and 64 GiB, in bytes.
const SMALLEST: f64 = 4096.0;
const LARGEST: f64 = 68_719_476_736.0;

/// A size between 4 KiB and 64 GiB whose logarithm is normal: median 16 MiB, and one in twenty
/// above 6 GiB or below 45 KiB.
fn log_normal(random: &mut StdRng) -> u64 {
    let (a, b): (f64, f64) = (random.random(), random.random());
    let normal = (-2.0 * (1.0 - a).ln()).sqrt() * (std::f64::consts::TAU * b).cos();
    ((16.0 * 1048576.0f64).ln() + 3.0 * normal)
        .exp()
        .clamp(SMALLEST, LARGEST) as u64
}

/// 30 ms and 100 MB/s, in microseconds.
fn cost(bytes: u64) -> u64 {
    30_000 + bytes / 100
}

fn check(workload: &Workload, balanced: &Balanced) {
    let mut loads = vec![0; workload.workers as usize];
    for ((worker, cost), group) in balanced
        .worker_of
        .iter()
        .zip(&workload.costs)
        .zip(&workload.group_of)
    {
        loads[*worker as usize] += cost;
        let runs = &workload.groups[*group as usize];
        assert!(runs.iter().any(|(a, b)| (a..b).contains(&worker)));
    }
    assert_eq!(loads, balanced.loads);
    assert_eq!(balanced.slowest, loads.iter().copied().max().unwrap_or(0));
    assert!(balanced.lower_bound <= balanced.slowest);
}

/// Up to three runs of workers.
fn random_runs(random: &mut StdRng, workers: u32) -> Vec<(u32, u32)> {
    let chance = random.random_range(0.1..1.0);
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for worker in 0..workers {
        if random.random_bool(chance) {
            match runs.last_mut() {
                Some((_, end)) if *end == worker => *end += 1,
                _ => runs.push((worker, worker + 1)),
            }
        }
    }
    if runs.is_empty() {
        let worker = random.random_range(0..workers);
        runs.push((worker, worker + 1));
    }
    runs
}

fn random_workload(random: &mut StdRng, workers: u32, jobs: usize, intervals: bool) -> Workload {
    let groups: Vec<Vec<(u32, u32)>> = (0..random.random_range(1..6))
        .map(|_| match intervals {
            false => random_runs(random, workers),
            true => {
                let first = random.random_range(0..workers);
                vec![(first, random.random_range(first + 1..=workers))]
            }
        })
        .collect();
    let sizes = random.random_range(0..3);
    Workload {
        workers,
        costs: (0..jobs)
            .map(|_| match sizes {
                0 => random.random_range(1..20),
                1 => random.random_range(50..100),
                _ => cost(log_normal(random)),
            })
            .collect(),
        group_of: (0..jobs)
            .map(|_| random.random_range(0..groups.len()) as u32)
            .collect(),
        groups,
    }
}

fn brute_force(workload: &Workload) -> u64 {
    fn go(workload: &Workload, job: usize, loads: &mut Vec<u64>, best: &mut u64) {
        if job == workload.costs.len() {
            *best = (*best).min(*loads.iter().max().unwrap());
            return;
        }
        for (first, end) in &workload.groups[workload.group_of[job] as usize] {
            for worker in *first..*end {
                loads[worker as usize] += workload.costs[job];
                if loads[worker as usize] < *best {
                    go(workload, job + 1, loads, best);
                }
                loads[worker as usize] -= workload.costs[job];
            }
        }
    }
    let mut best = u64::MAX;
    go(
        workload,
        0,
        &mut vec![0; workload.workers as usize],
        &mut best,
    );
    best
}

#[test]
fn small_cases_are_as_good_as_a_search_through_everything() {
    let mut random = StdRng::seed_from_u64(1);
    let (mut cases, mut equal) = (0, 0);
    for case in 0..2000 {
        let (workers, jobs) = (random.random_range(1..5), random.random_range(1..9));
        let workload = random_workload(&mut random, workers, jobs, case % 2 == 0);
        let balanced = balance(&workload).unwrap();
        check(&workload, &balanced);
        let best = brute_force(&workload);
        assert!(
            balanced.lower_bound <= best,
            "{workload:?} {balanced:?} {best}"
        );
        assert!(balanced.slowest as f64 <= 1.25 * best as f64);
        cases += 1;
        equal += u32::from(balanced.slowest == best);
    }
    println!("{equal} of {cases} are optimal");
    assert!(f64::from(equal) >= 0.95 * f64::from(cases));
}

/// Every file of an old subtask can go to any new subtask that shares a key group.
fn rescale(groups: u32, old: u32, new: u32, files: u32, mut cost: impl FnMut() -> u64) -> Workload {
    let mut workload = Workload {
        workers: new,
        ..Workload::default()
    };
    for subtask in 0..old {
        let run = subtasks_of(groups, new, key_groups_of(groups, old, subtask));
        workload.groups.push(vec![(run.start, run.end)]);
        for _ in 0..files {
            workload.costs.push(cost());
            workload.group_of.push(subtask);
        }
    }
    workload
}

/// The most files per holder that any run of old subtasks forces, rounded up.
fn forced(groups: u32, old: u32, new: u32, files: u32) -> u64 {
    let run = |subtask| subtasks_of(groups, new, key_groups_of(groups, old, subtask));
    (0..old)
        .flat_map(|a| (a..old).map(move |b| (a, b)))
        .map(|(a, b)| {
            let holders = run(b).end - run(a).start;
            u64::from((b - a + 1) * files).div_ceil(u64::from(holders))
        })
        .max()
        .unwrap()
}

#[test]
fn equal_files_are_spread_evenly_over_their_holders() {
    for (groups, old, new) in [
        (128, 1, 8),
        (128, 2, 8),
        (128, 4, 10),
        (128, 3, 128),
        (128, 10, 4),
        (32768, 1000, 1001),
    ] {
        for files in [1, 2, 7, 8, 20, 100, 128, 129] {
            if old * files > 30_000 {
                continue;
            }
            let workload = rescale(groups, old, new, files, || 1000);
            let balanced = balance(&workload).unwrap();
            check(&workload, &balanced);
            let wanted = 1000 * forced(groups, old, new, files);
            assert_eq!(balanced.slowest, wanted, "{old}->{new} {files} files each");
        }
    }
    // One file of each old subtask.
    for (old, new, files, slowest) in [
        (1, 8, 80, 10),
        (2, 8, 40, 10),
        (4, 10, 25, 10),
        (3, 128, 430, 11),
    ] {
        let balanced = balance(&rescale(128, old, new, files, || 1)).unwrap();
        assert_eq!(balanced.slowest, slowest, "{old}->{new}");
    }
}

#[test]
fn skewed_jobs_come_close_to_the_lower_bound() {
    let mut random = StdRng::seed_from_u64(2);
    let mut ratios = Vec::new();
    for _ in 0..1000 {
        let groups = [128, 720, 4096][random.random_range(0..3)];
        let (old, new) = (random.random_range(1..33), random.random_range(1..65));
        let files = random.random_range(5..80);
        let workload = rescale(groups, old, new, files, || cost(log_normal(&mut random)));
        let balanced = balance(&workload).unwrap();
        check(&workload, &balanced);
        ratios.push(balanced.ratio());
    }
    ratios.sort_by(f64::total_cmp);
    let at = |q: f64| ratios[(q * (ratios.len() - 1) as f64) as usize];
    println!(
        "ratio to the bound: median {:.4}, 90 % {:.4}, 99 % {:.4}, worst {:.4}",
        at(0.5),
        at(0.9),
        at(0.99),
        at(1.0)
    );
    assert!(at(0.5) <= 1.02);
}

#[test]
fn jobs_without_one_huge_file_come_close_to_the_lower_bound_too() {
    let mut random = StdRng::seed_from_u64(3);
    let mut ratios = Vec::new();
    for case in 0..300 {
        let workers = random.random_range(2..40);
        let jobs = random.random_range(50..400);
        let mut workload = random_workload(&mut random, workers, jobs, case % 2 == 0);
        for cost in &mut workload.costs {
            *cost = random.random_range(1000..10_000);
        }
        let balanced = balance(&workload).unwrap();
        check(&workload, &balanced);
        ratios.push(balanced.ratio());
    }
    ratios.sort_by(f64::total_cmp);
    println!(
        "median {:.4}, 90 % {:.4}, worst {:.4}",
        ratios[150], ratios[270], ratios[299]
    );
    assert!(ratios[150] <= 1.02);
    assert!(ratios[299] <= 1.25);
}

#[test]
fn the_order_of_the_jobs_does_not_matter() {
    let mut random = StdRng::seed_from_u64(4);
    for _ in 0..100 {
        let workload = random_workload(&mut random, 7, 60, false);
        let first = balance(&workload).unwrap();
        let mut order: Vec<usize> = (0..60).collect();
        order.shuffle(&mut random);
        let shuffled = Workload {
            costs: order.iter().map(|i| workload.costs[*i]).collect(),
            group_of: order.iter().map(|i| workload.group_of[*i]).collect(),
            ..workload.clone()
        };
        let second = balance(&shuffled).unwrap();
        assert_eq!(first.loads, second.loads);
        assert_eq!(balance(&workload).unwrap(), first);
    }
}

#[test]
fn nonsense_is_refused() {
    let workload = |costs: &[u64], groups: &[&[(u32, u32)]]| Workload {
        workers: 3,
        costs: costs.to_vec(),
        group_of: vec![0; costs.len()],
        groups: groups.iter().map(|g| g.to_vec()).collect(),
    };
    for bad in [
        workload(&[1], &[]),
        workload(&[1], &[&[]]),
        workload(&[1], &[&[(0, 4)]]),
        workload(&[1], &[&[(1, 1)]]),
        workload(&[1], &[&[(1, 2), (0, 1)]]),
        workload(&[u64::MAX, u64::MAX], &[&[(0, 1)]]),
    ] {
        assert!(balance(&bad).is_err(), "{bad:?}");
    }
    assert_eq!(balance(&workload(&[], &[])).unwrap().slowest, 0);
    assert_eq!(
        balance(&workload(&[0, 0], &[&[(0, 3)]])).unwrap().slowest,
        0
    );
}
