import java.util.*;
import org.apache.flink.runtime.checkpoint.RoundRobinOperatorStateRepartitioner;
import org.apache.flink.runtime.io.network.api.writer.SubtaskStateMapper;
import org.apache.flink.runtime.state.*;
import org.apache.flink.runtime.state.OperatorStateHandle.*;
import org.apache.flink.runtime.state.changelog.*;
import org.apache.flink.runtime.state.changelog.ChangelogStateBackendHandle.ChangelogStateBackendHandleImpl;
import org.apache.flink.runtime.state.memory.ByteStreamStateHandle;

/**
 * Asks real Flink who gets which state when the parallelism changes, and prints a table.
 *
 * <p>The formulas are Flink's KeyGroupRangeAssignment, the intersections those of its handles, operator state is spread by
 * its RoundRobinOperatorStateRepartitioner, channels by its SubtaskStateMapper.
 *
 * <p>java -cp "FLINK_HOME/lib/flink-dist-1.20.5.jar:FLINK_HOME/lib/*" tests/flink/rescale/RescaleTable.java > tests/fixtures/rescale/flink-1.20.5.txt
 */
public class RescaleTable {
    static final int[][] RESCALES = {
        {128, 1, 8}, {128, 2, 8}, {128, 3, 128}, {128, 4, 10}, {128, 10, 4}, {128, 2, 3}, {128, 7, 7}, {128, 128, 1}, {5, 2, 5},
        {200, 13, 17}, {4096, 100, 75}, {32768, 1000, 1001}, {32768, 32768, 3}
    };

    public static void main(String[] args) {
        System.out.println("# " + RescaleTable.class.getSimpleName() + ".java with " + version());
        for (int p : new int[] {1, 2, 85, 86, 128, 170, 171, 1000, 10922, 21845, 21846, 32768}) {
            System.out.println("default-max " + p + " " + KeyGroupRangeAssignment.computeDefaultMaxParallelism(p));
        }
        for (int[] r : RESCALES) {
            rescale(r[0], r[1], r[2]);
        }
        for (SubtaskStateMapper mapper :
                new SubtaskStateMapper[] {
                    SubtaskStateMapper.FIRST, SubtaskStateMapper.FULL, SubtaskStateMapper.RANGE, SubtaskStateMapper.ROUND_ROBIN
                }) {
            for (int[] r : new int[][] {{1, 8}, {2, 3}, {3, 2}, {4, 10}, {10, 4}, {5, 5}}) {
                for (int i = 0; i < r[1]; i++) {
                    System.out.println(
                            "channel " + mapper + " " + r[0] + " " + r[1] + " " + i + " " + join(mapper.getOldSubtasks(i, r[0], r[1])));
                }
            }
        }
        changelog();
        Random random = new Random(7);
        for (int i = 0; i < 60; i++) {
            operatorState(i, random);
        }
    }

    static String version() {
        return "Flink " + org.apache.flink.runtime.util.EnvironmentInformation.getVersion();
    }

    static String join(int[] numbers) {
        StringBuilder text = new StringBuilder();
        for (int n : numbers) {
            text.append(text.length() == 0 ? "" : ",").append(n);
        }
        return text.length() == 0 ? "-" : text.toString();
    }

    /** keyed M OLD NEW SUBTASK FIRST LAST OLD_SUBTASKS: the new subtask's key groups, and whose handles it gets. */
    static void rescale(int max, int old, int now) {
        List<KeyGroupsStateHandle> handles = new ArrayList<>();
        for (int i = 0; i < old; i++) {
            handles.add(full(KeyGroupRangeAssignment.computeKeyGroupRangeForOperatorIndex(max, old, i), "h" + i));
        }
        for (int i = 0; i < now; i++) {
            KeyGroupRange range = KeyGroupRangeAssignment.computeKeyGroupRangeForOperatorIndex(max, now, i);
            for (int k : range) {
                if (KeyGroupRangeAssignment.computeOperatorIndexForKeyGroup(max, now, k) != i) {
                    throw new AssertionError();
                }
            }
            List<Integer> from = new ArrayList<>();
            for (int o = 0; o < old; o++) {
                if (handles.get(o).getIntersection(range) != null
                        && handles.get(o).getIntersection(range).getKeyGroupRange().getNumberOfKeyGroups() > 0) {
                    from.add(o);
                }
            }
            System.out.println(
                    "keyed " + max + " " + old + " " + now + " " + i + " " + range.getStartKeyGroup() + " " + range.getEndKeyGroup()
                            + " " + join(from.stream().mapToInt(x -> x).toArray()));
        }
    }

    static KeyGroupsStateHandle full(KeyGroupRange range, String name) {
        return new KeyGroupsStateHandle(new KeyGroupRangeOffsets(range), new ByteStreamStateHandle(name, new byte[1]));
    }

    /** changelog FIRST LAST NEW_FIRST NEW_LAST BASES: which of two bases, 0..63 and 64..127, are still in the handle 43..85. */
    static void changelog() {
        List<KeyedStateHandle> bases = List.of(full(KeyGroupRange.of(0, 63), "0"), full(KeyGroupRange.of(64, 127), "1"));
        ChangelogStateBackendHandleImpl whole =
                new ChangelogStateBackendHandleImpl(bases, List.of(), KeyGroupRange.of(43, 85), 1, 1, 1);
        for (int[] r : new int[][] {{0, 42}, {43, 63}, {43, 85}, {0, 63}, {64, 127}, {86, 127}, {63, 64}, {0, 127}}) {
            KeyedStateHandle part = whole.getIntersection(KeyGroupRange.of(r[0], r[1]));
            List<Integer> left = new ArrayList<>();
            if (part != null) {
                for (KeyedStateHandle base : ((ChangelogStateBackendHandle) part).getMaterializedStateHandles()) {
                    if (base.getKeyGroupRange().getNumberOfKeyGroups() > 0) {
                        left.add(base.getKeyGroupRange().getStartKeyGroup() < 64 ? 0 : 1);
                    }
                }
            }
            System.out.println(
                    "changelog 43 85 " + r[0] + " " + r[1] + " " + join(left.stream().mapToInt(x -> x).toArray()));
        }
    }

    /**
     * operator CASE OLD NEW: then a line `part CASE HANDLE NAME MODE ELEMENTS` for each state in the order of the handle's map (handles
     * count from 1), and a line `gets CASE SUBTASK HANDLES` for each new subtask.
     */
    static void operatorState(int number, Random random) {
        int old = 1 + random.nextInt(6);
        int now = number % 5 == 0 ? old : 1 + random.nextInt(9);
        String[] names = {"kafka-offsets", "list", "pending", "Aa", "BB", "committer-state", "x", "zähler", "union-list", "rules", "bc2"};
        Mode[] modes = Mode.values();
        List<List<OperatorStateHandle>> previous = new ArrayList<>();
        System.out.println("operator " + number + " " + old + " " + now);
        int kinds = 1 + random.nextInt(names.length);
        for (int i = 0; i < old; i++) {
            Map<String, StateMetaInfo> states = new HashMap<>();
            for (int n = 0; n < kinds; n++) {
                // Broadcast state is the same everywhere.
                Mode mode = modes[n % 3 == 1 ? 1 : n >= 9 ? 2 : 0];
                if (mode == Mode.SPLIT_DISTRIBUTE && random.nextInt(6) == 0) {
                    continue;
                }
                int elements = mode == Mode.BROADCAST ? 1 : random.nextInt(5);
                states.put(names[n], new StateMetaInfo(new long[elements], mode));
            }
            previous.add(List.of(new OperatorStreamStateHandle(states, new ByteStreamStateHandle("" + i, new byte[] {(byte) i}))));
            states.forEach(
                    (name, info) ->
                            System.out.println(
                                    "part " + number + " " + previous.size() + " " + name + " " + info.getDistributionMode() + " "
                                            + info.getOffsets().length));
        }
        List<List<OperatorStateHandle>> next =
                RoundRobinOperatorStateRepartitioner.INSTANCE.repartitionState(previous, old, now);
        for (int i = 0; i < next.size(); i++) {
            Set<Integer> from = new TreeSet<>();
            for (OperatorStateHandle handle : next.get(i)) {
                boolean any = false;
                for (StateMetaInfo info : handle.getStateNameToPartitionOffsets().values()) {
                    any |= info.getOffsets().length > 0;
                }
                if (any) {
                    from.add(Integer.parseInt(((ByteStreamStateHandle) handle.getDelegateStateHandle()).getHandleName()));
                }
            }
            System.out.println("gets " + number + " " + i + " " + join(from.stream().mapToInt(x -> x).toArray()));
        }
    }
}
