import java.io.FileOutputStream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/** Hadoop's YARN in one JVM: a resource manager and a node manager. Arguments: the folder for yarn-site.xml. */
public class Yarn {
    public static void main(String[] arguments) throws Exception {
        Configuration conf = new YarnConfiguration();
        conf.setInt("yarn.scheduler.minimum-allocation-mb", 256);
        conf.setInt("yarn.nodemanager.resource.memory-mb", 8192);
        conf.setInt("yarn.nodemanager.resource.cpu-vcores", 8);
        conf.setBoolean("yarn.nodemanager.pmem-check-enabled", false);
        conf.setBoolean("yarn.nodemanager.vmem-check-enabled", false);
        conf.setFloat("yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage", 99.9f);
        conf.set("yarn.scheduler.capacity.root.queues", "default");
        conf.set("yarn.scheduler.capacity.root.default.capacity", "100");
        conf.setFloat("yarn.scheduler.capacity.maximum-am-resource-percent", 1f);
        MiniYARNCluster cluster = new MiniYARNCluster("yarn", 1, 1, 1);
        cluster.init(conf);
        cluster.start();
        try (FileOutputStream out = new FileOutputStream(arguments[0] + "/yarn-site.xml")) {
            cluster.getConfig().writeXml(out);
        }
        System.out.println("yarn is up");
        Thread.sleep(Long.MAX_VALUE);
    }
}
